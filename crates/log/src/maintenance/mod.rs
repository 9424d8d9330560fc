//! The maintenance worker: the thread behind an image that is open for writing. It prepares
//! segments, writes checkpoints, cleans, and restarts the log after a failed write. It sleeps when
//! nothing is due.

mod checkpoint;
mod cleaner;
mod compact;
mod copying;
mod pipe;
mod read_ahead;
mod resort;
mod restart;
mod space;
mod stage;
mod stream;
mod survey;
mod transfers;
mod turns;
mod victims;

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, Outcome, mutant};
use flowstone_fileio::BlockingFile;
use flowstone_image::runtime::inbox::PendingWork;
use flowstone_image::runtime::wakers::QueueWaker;
use flowstone_log_format::{Address, RootPlace, Sequence, Superblock, blocks_of_sectors};
use tracing::{error, info, warn};

use self::pipe::Pipe;
use self::resort::Resort;
use self::space::SpaceAhead;
use self::stage::Stage;
use self::stream::AppendStream;
use self::survey::Survey;
use super::append::{Full, Health};
use super::command::Command;
use super::core::Core;
use super::load::LeafPlaces;
use super::policy::{LIFETIMES, Lifetimes};

pub use self::checkpoint::CheckpointKind;
#[cfg(test)]
pub use self::turns::QUIET_TIME;

/// Interval of checkpoints, in multiples of the size of the map, since a checkpoint may write the
/// whole map; and its bounds in blocks of log: a start after a crash replays the log, half a
/// gigabyte in a second.
const INTERVAL_MAPS: u64 = 40;
const INTERVAL_MIN_BLOCKS: u64 = (512 << 20) / 4096;
const INTERVAL_MAX_BLOCKS: u64 = (4 << 30) / 4096;
/// State of the file that only the maintenance worker has, not the queues.
pub struct Knowledge {
    /// The newest superblock.
    pub superblock: Superblock,
    /// Addresses of the leaves of its map.
    pub leaves: LeafPlaces,
}

/// See the module.
pub struct Maintenance {
    core: Arc<Core>,
    file: BlockingFile,
    /// Ends its wait for a queue's sync.
    waker: Arc<QueueWaker>,
    superblock: Superblock,
    leaves: LeafPlaces,
    root: RootPlace,
    space: SpaceAhead,
    resort: Resort,
    /// Addresses and lengths of leaves and roots that the newest superblock still names and the
    /// next will not.
    outdated: Vec<(Address, u32)>,
    streams: [Option<AppendStream>; LIFETIMES],
    lifetimes: Lifetimes,
    /// Number of records written; the sequence number of the next one.
    records: u64,
    /// The lifetime whose stream is being filled.
    filling: Option<u8>,
    /// The log's clock when cleaning last waited for guests.
    guest_clock: u64,
    /// Time spent waiting for guests since the cleaning of this victim began.
    waited: Duration,
    /// Live blocks that were read from a victim and are not copied to a stream yet.
    stage: Stage,
    /// Reads of victims and writes of copies, and the memory for them.
    pipe: Option<Pipe>,
    /// The next victim, surveyed while copies of the previous one were in flight.
    next: Option<Survey>,
    /// When the host last reported that it has no space.
    host_full: Option<Instant>,
    /// When the host last had no space for new heads.
    restart_tried: Option<Instant>,
    /// Duration of the last sync that freed segments.
    sync_took: Duration,
    /// Whether the next step is expected to copy, too.
    goes_on: bool,
    /// Committed sequence number at the last check, to detect a pause.
    seen: Sequence,
    /// Committed sequence number when a sparse segment could not be cleaned.
    sparse_tried: Option<Sequence>,
    /// When work is due even without a wake-up.
    deadline: Option<Instant>,
    /// When guests count as paused, if they write nothing until then.
    quiet_at: Option<Instant>,
    /// Work it was woken for.
    called_for: PendingWork,
    /// Whether the last step did anything: then another one may follow.
    is_awake: bool,
}

/// Whether a step of the maintenance worker did anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Made,
    Idle,
}

impl Maintenance {
    pub fn new(core: Arc<Core>, knowledge: Knowledge) -> std::io::Result<Self> {
        let file = BlockingFile::new(&*core.file)?;
        let Knowledge { superblock, leaves } = knowledge;
        Ok(Self {
            core,
            waker: QueueWaker::new(file.reactor()),
            file,
            root: superblock.root,
            superblock,
            leaves,
            space: SpaceAhead::default(),
            resort: Resort::default(),
            outdated: Vec::new(),
            streams: Default::default(),
            lifetimes: Lifetimes::default(),
            records: 0,
            filling: None,
            guest_clock: 0,
            waited: Duration::ZERO,
            stage: Stage::default(),
            pipe: None,
            next: None,
            host_full: None,
            restart_tried: None,
            sync_took: Duration::MAX,
            goes_on: false,
            seen: Sequence::default(),
            sparse_tried: None,
            deadline: None,
            quiet_at: None,
            called_for: PendingWork::default(),
            is_awake: false,
        })
    }

    /// Returns the state that another maintenance worker needs to continue.
    pub fn into_knowledge(mut self) -> Knowledge {
        // The other worker appends to segments of its own.
        (0..LIFETIMES as u8).for_each(|lifetime| self.seal_stream(lifetime));
        Knowledge { superblock: self.superblock, leaves: self.leaves }
    }

    /// Makes the incarnations of this session unique, before the first is used.
    pub fn begin_session(&mut self) -> Outcome {
        // Writes of a killed daemon need not be durable, including its last superblock: it must not
        // be lost together with the one that is about to be written into the other slot.
        if !mutant("log.session.skips-first-sync") {
            self.file.sync()?;
        }
        let mut superblock = self.superblock.clone();
        superblock.session += u64::from(!mutant("log.session.reuses-incarnations"));
        superblock.clean = false;
        if mutant("log.streams.named-before-they-have-heads") {
            superblock.streams = self.core.shape.streams;
        }
        self.write_superblock(superblock)?;
        self.core.append_state().generation = self.superblock.generation;
        Ok(())
    }

    /// Writes a last checkpoint, so that the next open reads only the map.
    pub fn close(&mut self) {
        let (changed, healthy) = {
            let state = self.core.append_state();
            (state.changed, state.health == Health::Running && !self.core.sync.has_failed())
        };
        if !healthy || !changed && self.superblock.clean {
            return;
        }
        let mut closed = self.checkpoint(CheckpointKind::Last);
        if closed.is_err() && !changed {
            closed = self.close_as_it_was();
        }
        match closed {
            // Recovery needs no reserve any more: its space is freed, too.
            Ok(()) => self.release_reserve(),
            Err(errno) => {
                let name = &self.core.name;
                warn!("{name}: no checkpoint at the end ({errno}); the next start takes longer");
            }
        }
    }

    /// There may be no room for a map, but the newest superblock is still complete.
    fn close_as_it_was(&mut self) -> Outcome {
        {
            let mut state = self.core.append_state();
            if state.next_sequence() != self.superblock.next_sequence {
                return Err(Errno::BUSY);
            }
            state.health = Health::Stopped;
            self.core.show(&state);
        }
        self.sync()?;
        self.write_superblock(Superblock { clean: true, ..self.superblock.clone() })
    }

    pub fn run_commands(&mut self) {
        for (command, reply) in self.core.inbox.take_commands() {
            self.end_copying();
            let outcome = match command {
                Command::Resize { capacity, segments } => self.resize(capacity, segments),
                Command::Compact => self.compact(),
            };
            reply.send(outcome);
        }
    }

    fn resize(&mut self, capacity: u64, segments: u32) -> Outcome {
        let before = self.superblock.clone();
        let limit = self.core.append_state().segments.limit();
        let segments = {
            let mut state = self.core.append_state();
            let ends = blocks_of_sectors(capacity)..blocks_of_sectors(before.capacity_sectors);
            if state.is_any_in_flight(ends.clone()) || self.core.map.next_mapped(ends).is_some() {
                // Written since the caller checked; no write can get a place there from now on.
                return Err(Errno::BUSY);
            }
            // Segments may have been opened since the caller checked.
            let segments = segments.max(state.segments.highest_used().get() + 1);
            state.segments.set_limit(segments);
            let most = self.core.shape.segments_most(blocks_of_sectors(capacity));
            let wanted = state.kept_from_writes(&self.core.map);
            state.segments.raise_limit_for(wanted, most);
            state.segments.limit()
        };
        self.superblock.capacity_sectors = capacity;
        self.superblock.segments = segments;
        let resized = self.checkpoint(CheckpointKind::Running);
        if resized.is_err() {
            // A later checkpoint must not carry out a resize that was reported as failed.
            self.superblock.capacity_sectors = before.capacity_sectors;
            self.superblock.segments = before.segments;
            // Segments that no superblock knows of must not be used.
            self.core.append_state().segments.set_limit(limit);
        }
        resized
    }

    /// Carries out one step of a maintenance pass.
    pub fn step(&mut self) -> Progress {
        self.goes_on = false;
        let progress = self.do_step();
        if !self.goes_on && !mutant("log.rate.holds-while-nothing-is-due") {
            self.end_copying();
        }
        progress
    }

    fn do_step(&mut self) -> Progress {
        let health = self.core.append_state().health;
        match health {
            Health::Stopped => return Progress::Idle,
            Health::Restarting => return self.restart_when_given_up(),
            Health::Running => {}
        }
        if self.core.sync.has_failed() {
            // Nothing can become durable, so nothing can be freed.
            self.give_up_waiting(Errno::IO);
            return Progress::Idle;
        }
        if self.provide() == Progress::Made {
            return Progress::Made;
        }
        let due = self.core.append_state().since_checkpoint >= self.interval();
        if due {
            return self.try_checkpoint();
        }
        self.make_room()
    }

    pub fn interval(&self) -> u64 {
        let map = self.leaves.len() as u64 * 4 + u64::from(self.root.blocks);
        (INTERVAL_MAPS * map).clamp(INTERVAL_MIN_BLOCKS, INTERVAL_MAX_BLOCKS)
    }

    fn try_checkpoint(&mut self) -> Progress {
        match self.checkpoint(CheckpointKind::Running) {
            Ok(()) => Progress::Made,
            Err(errno) => {
                error!("{}: a checkpoint failed: {errno}", self.core.name);
                self.give_up_waiting(errno);
                Progress::Idle
            }
        }
    }

    fn announce_room(&mut self) {
        {
            let mut state = self.core.append_state();
            (state.writes.starved, state.trims.starved) = (false, false);
            let told = [state.writes.full.take(), state.trims.full.take()];
            if told.iter().any(Option::is_some) {
                info!("{}: there is room for writes again", self.core.name);
            }
        }
        self.core.announce_room();
    }

    /// Fails the requests that wait for room, when waiting is in vain.
    fn give_up_waiting(&mut self, errno: Errno) {
        let told = {
            let mut state = self.core.append_state();
            let state = &mut *state;
            let mut told = false;
            for (want, what) in [(&mut state.writes, "writes"), (&mut state.trims, "trims")] {
                if std::mem::take(&mut want.starved) {
                    if want.full.replace(Full { errno, at: self.core.clock.now() }).is_none() {
                        warn!("{}: no room for {what}: {errno}", self.core.name);
                    }
                    told = true;
                }
            }
            told
        };
        if told {
            self.core.announce_room();
        }
    }
}
