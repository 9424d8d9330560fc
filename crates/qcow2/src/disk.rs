//! A qcow2 image as a whole: operations besides serving.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use flowstone_block::{
    Channel, Damage, Errno, Error, Extent, Geometry, Layer, QueueContext, Result, SECTOR_BYTES,
    Sector, SectorCount,
};
use flowstone_fileio::{BlockingFile, FileIo};
use flowstone_image::runtime::trims::Trims;
use flowstone_image::runtime::worker::Worker;
use flowstone_image::{
    CheckOptions, CompactProgress, DamageWatcher, Damages, DiscardMode, Discards, Format, Image,
    Layout, Space, data_beyond_end, refuse_readonly, valid_capacity,
};
use tracing::error;

use super::channel::Qcow2Channel;
use super::check::check_beside;
use super::commits::Command;
use super::core::Core;
use super::meta::Source;
use super::slow_path::{SlowPath, load, look};

/// An open qcow2 image.
pub struct Qcow2Image {
    pub(super) core: Arc<Core>,
    pub(super) slow_path: Arc<SlowPath>,
    pub(super) trims: Arc<Trims>,
    pub(super) maintenance: Worker,
}

impl Qcow2Image {
    pub(super) fn queue(&self, context: &QueueContext) -> io::Result<Qcow2Channel> {
        let (core, slow_path, trims) =
            (Arc::clone(&self.core), Arc::clone(&self.slow_path), Arc::clone(&self.trims));
        Qcow2Channel::new(core, slow_path, trims, context)
    }

    fn refuse(&self, what: &str, why: &str, advice: &'static str) -> Error {
        Error::invalid(format!("{what} {}", self.core.name), why.to_owned(), advice)
    }
}

impl Drop for Qcow2Image {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            error!("{error}");
        }
    }
}

impl Layer for Qcow2Image {
    fn geometry(&self) -> Geometry {
        let cluster_bytes = self.core.shape.cluster_bytes() as u32;
        Geometry {
            discards: self.core.discard == DiscardMode::Deallocate && !self.core.readonly,
            readonly: self.core.readonly,
            zeroes_are_written: !self.core.readonly && self.core.file.zeroes_are_written(),
            logical_block_bytes: self.core.file.block_bytes(),
            discard_granularity_bytes: cluster_bytes.max(4096),
            ..Geometry::with_capacity(self.core.capacity())
        }
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(self.queue(context)?))
    }
}

impl Image for Qcow2Image {
    fn format(&self) -> Format {
        Format::Qcow2
    }

    fn space(&self) -> io::Result<Space> {
        let virtual_bytes = self.core.capacity().bytes();
        let allocated_bytes = self.core.file.allocated_bytes()?;
        let (live, dead) = {
            let meta = self.core.meta();
            (meta.live, meta.dead + meta.dropped.len() as u64)
        };
        let bytes = |clusters: u64| clusters << self.core.shape.cluster_bits;
        // The disk may end inside its last cluster.
        let live_bytes = live.map(|live| bytes(live).min(virtual_bytes));
        Ok(Space { virtual_bytes, live_bytes, allocated_bytes, dead_bytes: Some(bytes(dead)) })
    }

    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>> {
        let end = self.core.capacity().bytes();
        let mut position = from.get() * SECTOR_BYTES;
        let mut file = None;
        while position < end {
            let found = self.core.meta().find(position, end - position);
            let part = match found {
                Ok(part) => part,
                Err(missing) => {
                    if file.is_none() {
                        file = Some(BlockingFile::new(&*self.core.file)?);
                    }
                    load(&self.core, file.as_mut().expect("made above"), missing)?;
                    continue;
                }
            };
            let part_end = position + part.bytes;
            let data = match part.source {
                Source::Zero => None,
                Source::Backing => self.data_below(position, part_end)?,
                Source::File { .. } | Source::Compressed(_) | Source::Damaged => {
                    Some(position..part_end)
                }
            };
            if let Some(data) = data {
                let first = Sector::new(data.start / SECTOR_BYTES);
                let count = SectorCount::new((data.end - data.start).div_ceil(SECTOR_BYTES));
                return Ok(Extent::new(first, count));
            }
            position = part_end;
        }
        Ok(None)
    }

    fn discards(&self) -> Discards {
        self.core.discards.read(self.core.file.punched())
    }

    fn damages(&self) -> Damages {
        self.core.damages.get()
    }

    fn watch_damages(&self, watcher: DamageWatcher) {
        self.core.damages.watch(watcher);
    }

    fn resize(&self, capacity: SectorCount) -> Result<()> {
        const ADVICE: &str = "give a size such as 8G";
        valid_capacity(capacity.bytes()).map_err(|why| self.refuse("resize", why, ADVICE))?;
        let name = format!("resize {}", self.core.name);
        refuse_readonly(&name, self.core.readonly)?;
        let before = self.core.capacity();
        let largest = self.core.shape.l2_entries() * self.core.shape.cluster_bytes() * (4 << 20);
        if capacity.bytes() > largest {
            let why = "clusters of this size cannot make so large a disk";
            return Err(self.refuse("resize", why, "convert it to larger clusters"));
        }
        let backing_bytes = self.core.meta().backing_bytes;
        if capacity > before && backing_bytes > before.bytes() {
            let why = "its backing file is larger than it, and would show through";
            return Err(self.refuse(
                "resize",
                why,
                "convert it to an image without a backing file",
            ));
        }
        let host = |error: io::Error| Error::host(&*name, error, "check the host's file system");
        if capacity < before {
            let data = self.next_data(Sector::new(capacity.get())).map_err(host)?;
            if data.is_some() {
                return Err(data_beyond_end(&name));
            }
        }
        // Shrinks at once, so that nothing is written beyond the new end; grows once the map covers
        // the new size.
        self.core.set_capacity(capacity.min(before));
        let resized = self.core.commits.inbox.ask(Command::Resize(capacity)).wait();
        self.core.set_capacity(if resized.is_ok() { capacity } else { before });
        resized.map_err(|errno| host(errno.into()))
    }

    fn layout(&self) -> io::Result<Layout> {
        let mut layout = Layout::of(&*self.core.file)?;
        let mut file = BlockingFile::new(&*self.core.file)?;
        let end = self.core.capacity().bytes();
        let mut position = 0;
        // Offset at which the next part must begin to be contiguous.
        let mut next = 0;
        while position < end {
            let most = end - position;
            let (meta, part) = look(&self.core, &mut file, |meta| meta.find(position, most))?;
            drop(meta);
            position += part.bytes;
            let place = match part.source {
                Source::File { offset, .. } => offset..offset + part.bytes,
                Source::Compressed(found) => found.offset..found.offset + found.bytes,
                Source::Zero | Source::Backing | Source::Damaged => continue,
            };
            // Compressed data may end, and the next part may begin, in the last sector read.
            let follows = (next.max(SECTOR_BYTES) - SECTOR_BYTES..=next).contains(&place.start);
            layout.data_runs += u64::from(!follows);
            next = place.end;
        }
        Ok(layout)
    }

    fn compact(&self, progress: CompactProgress<'_>) -> Result<()> {
        let name = format!("compact {}", self.core.name);
        refuse_readonly(&name, self.core.readonly)?;
        let failed = |errno: Errno| {
            let advice = match errno {
                Errno::NOSPC => "free space on the host and repeat it; what is in order stays so",
                _ => "check the host's file system",
            };
            Error::host(&*name, errno, advice)
        };
        // A cluster that is moved must have no unknown user. The check reads the file, so the map
        // must be committed, and no commit may be running.
        self.core.commits.run().map_err(failed)?;
        let options = CheckOptions::default();
        // All promised clusters are committed.
        let (file, promised) = (&*self.core.file, HashSet::new());
        let report = check_beside(&self.core.name, file, promised, options, &mut |_, _| {})?;
        if let Some(error) = report.errors.first() {
            let damage = Damage::of_image(&self.core.name, error);
            return Err(Error::damaged(damage, "see `flowstone check --repair`"));
        }
        let inbox = &self.core.commits.inbox;
        inbox.ask(Command::Compact).wait_telling(inbox, progress).map_err(failed)
    }

    fn close(&self) -> Result<()> {
        self.trims.stop();
        self.slow_path.stop();
        self.core.commits.inbox.stop();
        let advice = "check the host's file system, then see `flowstone check`";
        self.maintenance.join(&self.core.name, advice)
    }

    fn file(&self) -> &dyn FileIo {
        &*self.core.file
    }

    fn serving(&self) -> String {
        let depth = if self.core.backing.is_some() { ", with a backing file" } else { "" };
        let cluster_kib = self.core.shape.cluster_bytes() as f64 / 1024.0;
        format!("qcow2, clusters of {cluster_kib} KiB{depth}, {}", self.core.file.describe())
    }
}

impl Qcow2Image {
    /// Returns the first part of a range for which the backing file may have data.
    fn data_below(&self, start: u64, end: u64) -> io::Result<Option<std::ops::Range<u64>>> {
        let Some(backing) = &self.core.backing else { return Ok(None) };
        let found = backing.next_data(Sector::new(start / SECTOR_BYTES))?;
        Ok(found.and_then(|extent| {
            let data_end = extent.start_bytes() + extent.bytes();
            let data = extent.start_bytes().max(start)..data_end.min(end);
            (!data.is_empty()).then_some(data)
        }))
    }
}
