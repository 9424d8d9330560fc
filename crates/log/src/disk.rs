//! A log image as a whole: opening, and operations besides serving.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{
    BlockingDisk, Channel, Errno, Error, Extent, Geometry, Layer, Outcome, QueueContext, Result,
    SECTOR_BYTES, Sector, SectorCount, mutant,
};
use flowstone_fileio::{Access, FileIo};
use flowstone_image::runtime::worker;
use flowstone_image::{
    CompactProgress, DamageWatcher, Damages, DiscardMode, Discards, Format, Image, Layout,
    LogState, Progress, Space, Tell, valid_capacity,
};
use flowstone_log_format::{
    Address, BLOCK_BYTES, BLOCK_SECTORS, Shape, blocks_of, blocks_of_sectors,
};
use tracing::{error, info};

use super::channel::LogChannel;
use super::command::Command;
use super::inspect::log_state;
use super::load::{Loaded, load};
use super::log::Log;
use super::log::append::{AppendState, Head, Health};
use super::maintenance::{Knowledge, Maintenance};
use super::refusal::LoadError;
use super::streams::Streams;
use super::upkeep_options::UpkeepOptions;
use super::volume::Volume;

/// An open log image.
pub struct LogImage {
    log: Arc<Log>,
    discard: DiscardMode,
    readonly: bool,
    maintenance: Option<JoinHandle<()>>,
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
        let (log, knowledge) = prepare(name.clone(), file, readonly, streams, progress)?;
        let mut image = Self { log, discard, readonly, maintenance: None };
        let started = knowledge.map(|it| start_maintenance(&image.log, it)).transpose();
        image.maintenance = started.map_err(|error| Error::host(name, error, "free resources"))?;
        Ok(image)
    }

    /// Sets how it keeps itself up; once, before the first cleaning.
    pub fn set_upkeep(&self, options: UpkeepOptions) {
        let UpkeepOptions { resort, tell, copy_memory, age_power } = options;
        self.log.volume.resorting.set_limit(resort.bytes(self.log.volume.capacity().bytes()));
        self.log.inbox.schedule_pass();
        let telling = tell == Tell::Always || self.log.file.tells_drive();
        self.log.telling.store(telling, Ordering::Relaxed);
        let _ = self.log.copy_memory.set(copy_memory);
        let _ = age_power.map(|power| self.log.age_power.set(power));
    }

    /// Returns whether the block in which a disk of this size ends holds data behind that end,
    /// which would reappear when the disk grows again.
    fn has_data_in_block_behind(&self, capacity: SectorCount) -> Result<bool> {
        let host = |error: io::Error| Error::host(&*self.log.name, error, "check the image");
        let (first, before) = (capacity.get(), self.log.volume.capacity().get());
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
        LogChannel::new(Arc::clone(&self.log), context, self.readonly)
    }

    /// Sends the maintenance worker a command, and waits for its reply.
    #[cfg(test)]
    pub(crate) fn ask(&self, command: Command) -> Outcome {
        self.log.inbox.ask(command).wait()
    }

    /// Opens for writing without the maintenance worker's thread: the caller steps the worker.
    pub fn open_stepped(
        name: String,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
        streams: Option<Streams>,
    ) -> Result<(Self, Maintenance)> {
        let (log, knowledge) = prepare(name.clone(), file, false, streams, None)?;
        let knowledge = knowledge.expect("an image that is open for writing is known");
        let maintenance = Maintenance::new(Arc::clone(&log), knowledge)
            .map_err(|error| Error::host(name, error, "free resources"))?;
        Ok((Self { log, discard, readonly: false, maintenance: None }, maintenance))
    }
}

fn start_maintenance(log: &Arc<Log>, knowledge: Knowledge) -> io::Result<JoinHandle<()>> {
    let (theirs, log) = (Arc::clone(log), Arc::clone(log));
    let make = move || Maintenance::new(theirs, knowledge);
    worker::start(make, Maintenance::run, move |_| log.retire())
}

/// Loads an image and, for writing, prepares it: a new session, and after a crash, or for a change
/// of streams, a checkpoint with fresh heads.
pub fn prepare(
    name: String,
    file: Box<dyn FileIo>,
    readonly: bool,
    streams: Option<Streams>,
    progress: Option<&Progress>,
) -> Result<(Arc<Log>, Option<Knowledge>)> {
    let mut loaded = load(&*file, progress).map_err(|error| error.explain(&name))?;
    if let Some(flaw) = loaded.replay.damage.take() {
        return Err(LoadError::Damaged(flaw).explain(&name));
    }
    if let Some(streams) = streams {
        let blocks = blocks_of_sectors(loaded.superblock.capacity_sectors);
        loaded.shape = streams.change(&name, loaded.shape, blocks, readonly)?;
    }
    prepare_loaded(name, file, loaded, readonly)
}

/// Prepares an image that has been loaded, and whose log ends where replay says. Its shape gives
/// the streams it is to have.
pub fn prepare_loaded(
    name: String,
    file: Box<dyn FileIo>,
    loaded: Loaded,
    readonly: bool,
) -> Result<(Arc<Log>, Option<Knowledge>)> {
    let features = loaded.superblock.readonly_features();
    if features != 0 && !readonly {
        let why = format!("it uses features {features:#x} that this version can only read");
        return Err(Error::unsupported(name, why, "open it read-only, or use a newer version"));
    }
    let Loaded { mut superblock, shape, codec, map, segments, leaves, replay } = loaded;
    // Whatever replay has found: whole records may follow the first torn one, and no new record may
    // lead to them.
    let trusts = mutant("log.open.goes-on-at-a-head-where-nothing-was-replayed");
    let is_clean = superblock.clean || trusts && replay.records == 0;
    let is_changed = shape.streams != superblock.streams;
    let starts_anew = is_changed || !is_clean;
    let mut state = AppendState::new(shape, segments, replay.next_sequence);
    state.clock = superblock.clock + replay.guest_blocks;
    state.totals = superblock.totals;
    state.totals.appended_blocks += replay.blocks;
    state.generation = superblock.generation;
    for (head, place) in state.heads.iter_mut().zip(replay.heads) {
        *head = Head { place, ..Head::default() };
    }
    if starts_anew && !readonly {
        state.health = Health::Restarting;
    }
    if replay.records > 0 {
        info!("{name}: {} records replayed after the last checkpoint", replay.records);
    }
    let capacity = SectorCount::new(superblock.capacity_sectors);
    let volume = Volume::new(capacity, map);
    // The superblock of this session records the limit before one of the added segments is used.
    let most = shape.segments_most(volume.blocks());
    let own = shape.segments_for(volume.blocks()).unwrap_or(0);
    state.segments.set_limit(state.segments.limit().max(own.min(most)));
    let wanted = state.kept_from_writes(&volume);
    state.segments.raise_limit_for(wanted, most);
    state.find_trim_heads(&volume);
    superblock.segments = superblock.segments.max(state.segments.limit());
    let log = Arc::new(Log::new(name.clone(), file, codec, volume, state));
    if readonly {
        return Ok((log, None));
    }
    let host = |error: io::Error| Error::host(name.clone(), error, "check the host's file system");
    let mut maintenance =
        Maintenance::new(Arc::clone(&log), Knowledge { superblock, leaves }).map_err(host)?;
    begin(&mut maintenance, &log, is_changed, starts_anew)?;
    Ok((log, Some(maintenance.into_knowledge())))
}

/// Begins the session. New heads are started after a crash, and for a change of streams.
fn begin(
    maintenance: &mut Maintenance,
    log: &Log,
    is_changed: bool,
    starts_anew: bool,
) -> Result<()> {
    let failed = |errno: Errno| match is_changed {
        true => no_other_streams(&log.name, log.shape, errno),
        false => Error::host(&*log.name, io::Error::from(errno), "check the host's file system"),
    };
    if is_changed && !mutant("log.streams.begins-without-room") {
        // Before the image is marked as in use.
        maintenance.writer.space.get_ahead(segments_to_change(log.shape)).map_err(failed)?;
    }
    maintenance.begin_session().map_err(failed)?;
    if !starts_anew {
        return Ok(());
    }
    match restart(maintenance) {
        Ok(()) => maintenance.writer.space.punch_free(),
        Err(errno) if is_changed => return Err(failed(errno)),
        Err(errno) => maintenance.restart.put_off(errno).map_err(failed)?,
    }
    Ok(())
}

/// Segments needed to change streams: a head for each, and the map.
const fn segments_to_change(shape: Shape) -> u32 {
    shape.streams + 1
}

/// Error for a change of streams: the image is unchanged, since no durable structure names other
/// streams before they have heads.
fn no_other_streams(name: &str, shape: Shape, errno: Errno) -> Error {
    let streams = Streams::of(shape.streams);
    let bytes = u64::from(segments_to_change(shape)) * shape.segment_bytes();
    let advice =
        format!("free {bytes} bytes on the host for --streams {}, or leave it out", streams.name());
    Error::host(name, io::Error::from(errno), advice)
}

/// Starts new heads after a crash. On a full host it is unknown which free segments are allocated:
/// all are deallocated, and the host is tried again. Replay has read none of them, and would not
/// after another power cut.
fn restart(maintenance: &mut Maintenance) -> Outcome {
    maintenance.restart.run(&mut maintenance.writer).or_else(|errno| {
        if errno != Errno::NOSPC || mutant("log.open.gives-up-on-a-full-host") {
            return Err(errno);
        }
        maintenance.writer.space.punch_free();
        maintenance.restart.run(&mut maintenance.writer)
    })
}

impl Drop for LogImage {
    fn drop(&mut self) {
        self.log.inbox.stop();
        if let Some(maintenance) = self.maintenance.take()
            && maintenance.join().is_err()
        {
            error!(
                "{}: the maintenance worker has panicked; the next start recovers",
                self.log.name
            );
        }
    }
}

impl Layer for LogImage {
    fn geometry(&self) -> Geometry {
        Geometry {
            discards: self.discard == DiscardMode::Deallocate && !self.readonly,
            readonly: self.readonly,
            ..Geometry::with_capacity(self.log.volume.capacity())
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
        let garbage = self.log.append_state().segments.garbage_blocks();
        Ok(Space {
            virtual_bytes: self.log.volume.capacity().bytes(),
            live_bytes: Some(self.log.volume.live_bytes()),
            allocated_bytes: self.log.file.allocated_bytes()?,
            dead_bytes: Some(garbage * BLOCK_BYTES as u64),
        })
    }

    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>> {
        let blocks = self.log.volume.blocks();
        let first = from.get() / BLOCK_SECTORS;
        let Some(start) = self.log.volume.map.next_mapped(first..blocks) else { return Ok(None) };
        let end = self.log.volume.map.next_unmapped(start..blocks).unwrap_or(blocks);
        let first = (start * BLOCK_SECTORS).max(from.get());
        let last = (end * BLOCK_SECTORS).min(self.log.volume.capacity().get());
        Ok(Extent::new(Sector::new(first), SectorCount::new(last - first)))
    }

    fn damages(&self) -> Damages {
        self.log.volume.damages.get()
    }

    fn watch_damages(&self, watcher: DamageWatcher) {
        self.log.volume.damages.watch(watcher);
    }

    fn resize(&self, capacity: SectorCount) -> Result<()> {
        let name = format!("resize {}", self.log.name);
        if self.readonly {
            let why = "it is open for reading only";
            return Err(Error::invalid(name, why, "open it for writing"));
        }
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
        let beyond = blocks..self.log.volume.blocks().max(blocks);
        if self.log.volume.map.next_mapped(beyond).is_some()
            || self.has_data_in_block_behind(capacity)?
        {
            return Err(Error::invalid(
                name,
                "there is data beyond the new end",
                "shrink the file system inside first and discard what it leaves (fstrim)",
            ));
        }
        let used = self.log.append_state().segments.highest_used().get() + 1;
        let segments = segments.max(used);
        let command = Command::Resize { capacity: capacity.get(), segments };
        let resized = self.log.volume.resize_while(capacity, || self.log.inbox.ask(command).wait());
        resized.map_err(|errno| Error::host(name, errno, "check the host's file system"))
    }

    fn layout(&self) -> io::Result<Layout> {
        let mut layout = Layout::of(&*self.log.file)?;
        let blocks = self.log.volume.blocks();
        let mut at = 0;
        let mut before: Option<Address> = None;
        while let Some(lba) = self.log.volume.map.next_mapped(at..blocks) {
            let address = self.log.volume.map.get(lba).address();
            layout.data_runs += u64::from(!before.is_some_and(|it| it.is_followed_by(address)));
            before = Some(address);
            at = lba + 1;
        }
        Ok(layout)
    }

    fn compact(&self, progress: CompactProgress<'_>) -> Result<()> {
        let name = format!("compact {}", self.log.name);
        if self.readonly {
            let why = "it is open for reading only";
            return Err(Error::invalid(name, why, "open it for writing"));
        }
        let inbox = &self.log.inbox;
        let compacted = inbox.ask(Command::Compact).wait_telling(inbox, progress);
        compacted
            .map_err(|errno| Error::host(name, errno, "free space on the host, or try again later"))
    }

    fn discards(&self) -> Discards {
        self.log.volume.discards.read(self.log.file.punched())
    }

    fn log_state(&self) -> Option<LogState> {
        Some(log_state(&self.log))
    }

    fn file(&self) -> &dyn FileIo {
        &*self.log.file
    }

    fn serving(&self) -> String {
        let shape = self.log.shape;
        format!(
            "log, segments of {} KiB, streams {}, {}",
            shape.segment_bytes() / 1024,
            Streams::of(shape.streams).name(),
            self.log.file.describe()
        )
    }
}
