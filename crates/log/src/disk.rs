//! A log image as a whole: operations besides serving.

use std::io;
use std::path::Path;
use std::sync::Arc;

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{
    BlockingDisk, Channel, Error, Extent, Geometry, Layer, QueueContext, Result, SECTOR_BYTES,
    Sector, SectorCount,
};
use flowstone_fileio::{Access, FileIo};
use flowstone_image::runtime::worker::{self, Worker};
use flowstone_image::{
    CompactProgress, DamageWatcher, Damages, DiscardMode, Discards, Format, Image, Layout,
    OwnState, Progress, Space, Tell, data_beyond_end, refuse_readonly, valid_capacity,
};
use flowstone_log_format::{Address, BLOCK_BYTES, BLOCK_SECTORS, blocks_of};
use tracing::error;

use super::channel::LogChannel;
use super::command::Command;
use super::log::Log;
use super::maintenance::Maintenance;
use super::session::{Unbegun, load_for};
use super::state::LogState;
use super::streams::Streams;
use super::upkeep_options::UpkeepOptions;
use super::volume::Volume;

/// An open log image.
pub struct LogImage {
    pub(crate) log: Arc<Log>,
    pub(crate) volume: Arc<Volume>,
    discard: DiscardMode,
    readonly: bool,
    maintenance: Worker,
}

impl LogImage {
    /// Takes over an open host file. For writing, first recovers the image if needed, changes its
    /// streams if asked to, and starts the maintenance worker.
    pub fn open(
        path: &Path,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
        access: Access,
        streams: Option<Streams>,
        progress: Option<&Progress>,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let readonly = access != Access::Write;
        let (log, volume, unbegun) = load_for(name, file, readonly, streams, progress)?;
        if let Some(progress) = progress.filter(|_| !readonly) {
            progress.begin_writing(&log.name)?;
        }
        let maintenance = unbegun.map(start_maintenance).transpose()?.unwrap_or_default();
        Ok(Self { log, volume, discard, readonly, maintenance })
    }

    /// Sets how it keeps itself up; once, before the first cleaning.
    pub fn set_upkeep(&self, options: UpkeepOptions) {
        let UpkeepOptions { resort, tell, copy_memory, age_power, copy_lifetimes } = options;
        self.volume.resorting.set_limit(resort.bytes(self.volume.capacity().bytes()));
        self.log.inbox.schedule_pass();
        let telling = tell == Tell::Always || self.log.store.file().tells_drive();
        self.log.telling.store(telling, Ordering::Relaxed);
        let _ = self.log.copy_memory.set(copy_memory);
        let _ = age_power.map(|power| self.log.age_power.set(power));
        let _ = copy_lifetimes.map(|count| self.log.copy_lifetimes.set(count));
    }

    /// Returns whether the block in which a disk of this size ends holds data behind that end,
    /// which would reappear when the disk grows again.
    fn has_data_in_block_behind(&self, capacity: SectorCount) -> Result<bool> {
        let host = |error: io::Error| Error::host(&*self.log.name, error, "check the image");
        let (first, before) = (capacity.get(), self.volume.capacity().get());
        let last = first.next_multiple_of(BLOCK_SECTORS).min(before);
        if first >= last {
            return Ok(false);
        }
        let mut sectors = vec![0; (last - first) as usize * SECTOR_BYTES as usize];
        let mut disk = BlockingDisk::new(self).map_err(host)?;
        disk.read(Sector::new(first), &mut sectors).map_err(|errno| host(errno.into()))?;
        Ok(sectors.iter().any(|byte| *byte != 0))
    }

    pub(crate) fn queue(&self, context: &QueueContext) -> io::Result<LogChannel> {
        LogChannel::new(Arc::clone(&self.log), Arc::clone(&self.volume), context, self.readonly)
    }

    /// Sends the maintenance worker a command, and waits for its reply.
    #[cfg(test)]
    pub(crate) fn ask(&self, command: Command) -> flowstone_block::Outcome {
        self.log.inbox.ask(command).wait()
    }

    /// Opens for writing without the maintenance worker's thread: the caller steps the worker.
    pub fn open_stepped(
        name: String,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
        streams: Option<Streams>,
    ) -> Result<(Self, Maintenance)> {
        let (log, volume, unbegun) = load_for(name, file, false, streams, None)?;
        let maintenance = unbegun.expect("it is open for writing").begin()?;
        Ok((
            Self { log, volume, discard, readonly: false, maintenance: Worker::default() },
            maintenance,
        ))
    }
}

fn start_maintenance(unbegun: Unbegun) -> Result<Worker> {
    let log = Arc::clone(&unbegun.log);
    let name = log.name.clone();
    worker::start(&name, || unbegun.begin(), Maintenance::run, move |_| log.retire())
}

impl Drop for LogImage {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            error!("{error}");
        }
    }
}

impl Layer for LogImage {
    fn geometry(&self) -> Geometry {
        Geometry {
            discards: self.discard == DiscardMode::Deallocate && !self.readonly,
            readonly: self.readonly,
            ..Geometry::with_capacity(self.volume.capacity())
        }
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        Ok(Box::new(self.queue(context)?))
    }
}

impl Image for LogImage {
    fn format(&self) -> Format {
        Format::Log
    }

    fn space(&self) -> io::Result<Space> {
        let garbage = self.log.append_state().segments().garbage_blocks();
        Ok(Space {
            virtual_bytes: self.volume.capacity().bytes(),
            live_bytes: Some(self.volume.live_bytes()),
            allocated_bytes: self.log.store.file().allocated_bytes()?,
            dead_bytes: Some(garbage * BLOCK_BYTES as u64),
        })
    }

    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>> {
        let blocks = self.volume.blocks();
        let first = from.get() / BLOCK_SECTORS;
        let Some(start) = self.volume.map.next_mapped(first..blocks) else { return Ok(None) };
        let end = self.volume.map.next_unmapped(start..blocks).unwrap_or(blocks);
        let first = (start * BLOCK_SECTORS).max(from.get());
        let last = (end * BLOCK_SECTORS).min(self.volume.capacity().get());
        Ok(Extent::new(Sector::new(first), SectorCount::new(last - first)))
    }

    fn damages(&self) -> Damages {
        self.volume.damages.get()
    }

    fn watch_damages(&self, watcher: DamageWatcher) {
        self.volume.damages.watch(watcher);
    }

    fn resize(&self, capacity: SectorCount) -> Result<()> {
        let name = format!("resize {}", self.log.name);
        refuse_readonly(&name, self.readonly)?;
        valid_capacity(capacity.bytes())
            .map_err(|why| Error::invalid(name.clone(), why, "give a size such as 8G"))?;
        let blocks = blocks_of(capacity.bytes());
        let segments =
            self.log.shape.segments_for(blocks).filter(|_| self.log.shape.root_fits(blocks));
        let Some(segments) = segments else {
            let why = "a log image with segments of this size cannot be so large";
            return Err(Error::invalid(
                name,
                why,
                "convert it to an image with a larger --segment",
            ));
        };
        let beyond = blocks..self.volume.blocks().max(blocks);
        if self.volume.map.next_mapped(beyond).is_some()
            || self.has_data_in_block_behind(capacity)?
        {
            return Err(data_beyond_end(&name));
        }
        let command = Command::Resize { capacity: capacity.get(), segments };
        let resized = self.volume.resize_while(capacity, || self.log.inbox.ask(command).wait());
        resized.map_err(|errno| Error::host(name, errno, "check the host's file system"))
    }

    fn layout(&self) -> io::Result<Layout> {
        let mut layout = Layout::of(self.log.store.file())?;
        let mut before: Option<Address> = None;
        for (_, map_entry) in self.volume.map.all_mapped(self.volume.blocks()) {
            let address = map_entry.address();
            layout.data_runs += u64::from(!before.is_some_and(|it| it.is_followed_by(address)));
            before = Some(address);
        }
        Ok(layout)
    }

    fn compact(&self, progress: CompactProgress<'_>) -> Result<()> {
        let name = format!("compact {}", self.log.name);
        refuse_readonly(&name, self.readonly)?;
        let inbox = &self.log.inbox;
        let compacted = inbox.ask(Command::Compact).wait_telling(inbox, progress);
        compacted
            .map_err(|errno| Error::host(name, errno, "free space on the host, or try again later"))
    }

    fn discards(&self) -> Discards {
        self.volume.discards.read(self.log.store.file().punched())
    }

    fn own_state(&self) -> Option<OwnState> {
        Some(OwnState::of(&LogState::of(&self.log, &self.volume), LogState::METRICS))
    }

    fn close(&self) -> Result<()> {
        self.log.inbox.stop();
        let advice = "the next start recovers it; check the host's file system";
        self.maintenance.join(&self.log.name, advice)
    }

    fn file(&self) -> &dyn FileIo {
        self.log.store.file()
    }

    fn serving(&self) -> String {
        let shape = self.log.shape;
        format!(
            "log, segments of {} KiB, streams {}, {}",
            shape.segment_bytes() / 1024,
            Streams::of(shape.streams).name(),
            self.log.store.file().describe()
        )
    }
}
