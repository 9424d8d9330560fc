//! A raw image as a whole: geometry, space, resize.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{
    Channel, Error, Extent, Geometry, Layer, QueueContext, Result, SECTOR_BYTES, Sector,
    SectorCount, mutated,
};
use flowstone_fileio::{Access, BlockingFile, FileIo, FileOffset, FileOp};
use flowstone_image::runtime::discards::DiscardCounters;
use flowstone_image::runtime::group_sync::GroupSync;
use flowstone_image::runtime::pace::Activity;
use flowstone_image::runtime::trims::Trims;
use flowstone_image::{
    CompactProgress, DiscardMode, Discards, Format, Image, Layout, Space, Upkeep, data_beyond_end,
    refuse_readonly, valid_capacity,
};

use super::channel::{RawChannel, RawParts};
use super::sparsify::sparsify;

const LOST_ADVICE: &str = "check the host's disk: recent writes may be lost";

/// An open raw image.
pub struct RawImage {
    name: String,
    file: Arc<dyn FileIo>,
    /// In sectors. A live resize changes it while queues run; they do not depend on it, because the
    /// front end checks each request against the size it has told its guest.
    capacity: AtomicU64,
    discard: DiscardMode,
    readonly: bool,
    syncs: Arc<GroupSync>,
    activity: Arc<Activity>,
    discards: Arc<DiscardCounters>,
    trims: Arc<Trims>,
}

impl RawImage {
    /// Takes over an open host file.
    pub fn open(
        path: &Path,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
        access: Access,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let bytes = file
            .size()
            .map_err(|error| Error::host(name.clone(), error, "check the host's file system"))?;
        let capacity = valid_capacity(bytes).map_err(|why| {
            Error::invalid(
                name.clone(),
                format!("not a raw disk image: {why}"),
                "give the right file, or fix its size with `truncate`",
            )
        })?;
        let file = Arc::<dyn FileIo>::from(file);
        let activity = Arc::<Activity>::default();
        let discards = Arc::<DiscardCounters>::default();
        let trims = Arc::new(start_trims(&file, discard, &activity, &discards));
        Ok(Self {
            name,
            file,
            capacity: AtomicU64::new(capacity.get()),
            discard,
            readonly: access != Access::Write,
            syncs: Arc::default(),
            activity,
            discards,
            trims,
        })
    }

    fn capacity(&self) -> SectorCount {
        SectorCount::new(self.capacity.load(Ordering::Relaxed))
    }

    /// Returns whether discards have an effect here without writing: a host without a call that
    /// drops the data and keeps the space would write zeroes, as many as the guest likes.
    fn offers_discards(&self) -> bool {
        match self.discard {
            DiscardMode::Ignore => false,
            DiscardMode::Keep => !self.file.zeroes_are_written(),
            DiscardMode::Deallocate => self.file.takes_discards(),
        }
    }

    /// Returns the upkeep that carries out its discards, in the place of its thread.
    pub fn upkeep(&self) -> Box<dyn Upkeep> {
        Box::new(self.trims.by_hand())
    }

    fn queue(&self, context: &QueueContext) -> io::Result<RawChannel> {
        let parts = RawParts {
            file: self.file.channel(context)?,
            discards: self.offers_discards(),
            discards_to_zeroes: self.file.discards_to_zeroes(),
            syncs: Arc::clone(&self.syncs),
            trims: Arc::clone(&self.trims),
            activity: self.activity.counter(),
        };
        Ok(RawChannel::new(parts, context))
    }

    /// Returns whether any data lies at or after `from`.
    fn has_data_after(&self, from: SectorCount) -> Result<bool> {
        self.next_data(Sector::new(from.get()))
            .map(|found| found.is_some())
            .map_err(|error| Error::host(self.name.clone(), error, "check the host's file system"))
    }
}

fn start_trims(
    file: &Arc<dyn FileIo>,
    mode: DiscardMode,
    activity: &Arc<Activity>,
    discards: &Arc<DiscardCounters>,
) -> Trims {
    let clock = file.clock();
    let (file, counters) = (Arc::clone(file), Arc::clone(discards));
    Trims::new(Arc::clone(activity), Arc::clone(discards), clock, move || {
        let mut file = BlockingFile::new(&*file)?;
        let counters = Arc::clone(&counters);
        Ok(Box::new(move |extent: Extent| {
            counters.count_runs(1);
            let (offset, bytes) = (FileOffset::new(extent.start_bytes()), extent.bytes());
            file.run(match mode {
                DiscardMode::Keep => FileOp::Clear { offset, bytes },
                DiscardMode::Deallocate | DiscardMode::Ignore => FileOp::Discard { offset, bytes },
            })
        }))
    })
}

impl Layer for RawImage {
    fn geometry(&self) -> Geometry {
        Geometry {
            discards: !self.readonly && self.offers_discards(),
            readonly: self.readonly,
            logical_block_bytes: self.file.block_bytes(),
            zeroes_are_written: !self.readonly && self.file.zeroes_are_written(),
            ..Geometry::with_capacity(self.capacity())
        }
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(self.queue(context)?))
    }
}

impl Image for RawImage {
    fn format(&self) -> Format {
        Format::Raw
    }

    fn space(&self) -> io::Result<Space> {
        let (virtual_bytes, allocated_bytes) =
            (self.capacity().bytes(), self.file.allocated_bytes()?);
        let live_bytes = Some(allocated_bytes.min(virtual_bytes));
        Ok(Space { virtual_bytes, live_bytes, allocated_bytes, dead_bytes: None })
    }

    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>> {
        let end = self.capacity().bytes();
        let Some(range) = self.file.next_data(FileOffset::new(from.get() * SECTOR_BYTES))? else {
            return Ok(None);
        };
        let first = range.start.get() / SECTOR_BYTES;
        let last = range.end.get().min(end).div_ceil(SECTOR_BYTES);
        Ok(Extent::new(Sector::new(first), SectorCount::new(last.saturating_sub(first))))
    }

    fn discards(&self) -> Discards {
        self.discards.read(self.file.punched())
    }

    fn resize(&self, capacity: SectorCount) -> Result<()> {
        let name = format!("resize {}", self.name);
        valid_capacity(capacity.bytes())
            .map_err(|why| Error::invalid(name.clone(), why, "give a size such as 8G"))?;
        if capacity < self.capacity() && self.has_data_after(capacity)? {
            return Err(data_beyond_end(&name));
        }
        let host = |error| Error::host(&name, error, "check the host's file system");
        let mut file = BlockingFile::new(&*self.file).map_err(host)?;
        self.file.set_size(capacity.bytes()).map_err(|error| match error.raw_os_error() {
            Some(libc::EOPNOTSUPP) => {
                let why = "a block device has the size it has";
                Error::unsupported(&name, why, "resize the device itself")
            }
            _ => Error::host(&name, error, "choose a smaller size"),
        })?;
        // Through the group sync, so that the guest's flushes see its failure.
        let syncs = mutated("raw.resize.told-before-durable", true, false);
        let synced = if syncs { self.syncs.run(&mut file) } else { Ok(()) };
        synced.map_err(|errno| {
            // Data that the host has lost stays lost; the size must not be left half changed as
            // well.
            let _ = self.file.set_size(self.capacity().bytes());
            let advice = "restart the disk: it keeps no promise any more";
            Error::host(&name, io::Error::from(errno), advice)
        })?;
        self.capacity.store(capacity.get(), Ordering::Relaxed);
        Ok(())
    }

    fn layout(&self) -> io::Result<Layout> {
        let mut layout = Layout::of(&*self.file)?;
        let mut at = Sector::new(0);
        while let Some(data) = self.next_data(at)? {
            layout.data_runs += 1;
            at = data.end();
        }
        Ok(layout)
    }

    fn compact(&self, progress: CompactProgress<'_>) -> Result<()> {
        let name = format!("compact {}", self.name);
        refuse_readonly(&name, self.readonly)?;
        if !self.file.discards_to_zeroes() {
            let why = "the device cannot give space back and read as zeroes there";
            let advice = "leave it as it is: nothing would be gained";
            return Err(Error::unsupported(name, why, advice));
        }
        sparsify(self, progress)
            .map_err(|error| Error::host(name, error, "check the host's file system and the image"))
    }

    fn close(&self) -> Result<()> {
        if self.readonly {
            return Ok(());
        }
        let name = format!("flush {}", self.name);
        let host = |error: io::Error| Error::host(&name, error, LOST_ADVICE);
        let mut file = BlockingFile::new(&*self.file).map_err(host)?;
        self.syncs.run(&mut file).map_err(|errno| host(errno.into()))
    }

    fn file(&self) -> &dyn FileIo {
        &*self.file
    }

    fn serving(&self) -> String {
        format!("raw, {}", self.file.describe())
    }
}

#[cfg(test)]
mod tests;
