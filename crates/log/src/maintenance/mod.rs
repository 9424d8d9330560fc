//! The maintenance worker: the thread behind an image that is open for writing. It prepares
//! segments, writes checkpoints, cleans, and restarts the log after a failed write. It sleeps when
//! nothing is due.

mod candidates;
mod cleaner;
mod compact;
mod resort;
mod restart;
mod turns;
mod writer;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{Errno, Outcome, mutated};
use flowstone_image::runtime::inbox::PendingWork;
use flowstone_log_format::{Sequence, Superblock, blocks_of_sectors};
use tracing::warn;

use self::cleaner::Cleaner;
use self::resort::Resort;
use self::restart::{Restart, is_lack_of_space};
use self::writer::Writer;
use super::command::Command;
use super::load::LeafPlaces;
use super::log::Log;
use super::log::append::Health;
use super::volume::Volume;

#[cfg(test)]
pub use self::cleaner::refusal;
#[cfg(test)]
pub use self::turns::QUIET_TIME;
pub use self::writer::CheckpointKind;

/// See the module.
pub struct Maintenance {
    log: Arc<Log>,
    volume: Arc<Volume>,
    pub writer: Writer,
    pub cleaner: Cleaner,
    pub resort: Resort,
    pub restart: Restart,
    /// Committed sequence number at the last check, to detect a pause.
    seen: Sequence,
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
    /// A worker of a log and the volume on it, whose newest superblock and leaves of the map are
    /// these.
    pub fn new(
        log: Arc<Log>,
        volume: Arc<Volume>,
        superblock: Superblock,
        leaves: LeafPlaces,
    ) -> io::Result<Self> {
        let both = || (Arc::clone(&log), Arc::clone(&volume));
        Ok(Self {
            writer: Writer::new(both(), superblock, leaves)?,
            cleaner: Cleaner::new(both()),
            resort: Resort::new(both()),
            restart: Restart::new(both()),
            log,
            volume,
            seen: Sequence::default(),
            deadline: None,
            quiet_at: None,
            called_for: PendingWork::default(),
            is_awake: false,
        })
    }

    /// Makes the incarnations of this session unique, before the first is used.
    pub fn begin_session(&mut self) -> Outcome {
        // Writes of a killed daemon need not be durable, including its last superblock: it must not
        // be lost together with the one that is about to be written into the other slot.
        let syncs = mutated("log.session.skips-first-sync", true, false);
        if syncs {
            self.writer.space.store.sync_alone()?;
        }
        let mut superblock = self.writer.superblock.clone();
        let more = mutated("log.session.reuses-incarnations", 1, 0);
        superblock.session += more;
        superblock.clean = false;
        let (streams, all) = (superblock.streams, self.log.shape.streams);
        let streams = mutated("log.streams.named-before-they-have-heads", streams, all);
        superblock.streams = streams;
        self.writer.write_superblock(superblock)?;
        self.log.append_state().set_generation(self.writer.superblock.generation);
        Ok(())
    }

    /// Makes everything durable and writes a last checkpoint, so that the next open reads only the
    /// map. On a full host there may be none: the next open recovers, nothing is lost.
    pub fn close(&mut self) -> Outcome {
        let (changed, health) = {
            let state = self.log.append_state();
            (state.accounting().has_changed(), state.health())
        };
        if self.log.sync.has_failed() || health == Health::Stopped {
            return Err(Errno::IO);
        }
        if !changed && self.writer.superblock.clean {
            return Ok(());
        }
        let closed = match health {
            Health::Running => self.writer.checkpoint(CheckpointKind::Last),
            // No head may be written to before there are new ones: the image must not become clean.
            _ => Err(Errno::NOSPC),
        };
        let has_heads = health == Health::Running;
        let has_heads = mutated("log.close.clean-without-new-heads", has_heads, true);
        let may_stay = closed.is_err() && !changed && has_heads;
        match if may_stay { self.close_as_it_was().or(closed) } else { closed } {
            // Recovery needs no reserve any more: its space is freed, too.
            Ok(()) => self.writer.space.release_reserve(),
            Err(errno) if is_lack_of_space(errno) && !self.log.sync.has_failed() => {
                self.writer.space.sync()?;
                let name = &self.log.name;
                warn!("{name}: no checkpoint at the end ({errno}); the next start takes longer");
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// There may be no room for a map, but the newest superblock is still complete.
    fn close_as_it_was(&mut self) -> Outcome {
        {
            let mut state = self.log.append_state();
            if state.next_sequence() != self.writer.superblock.next_sequence {
                return Err(Errno::BUSY);
            }
            self.log.change_health(&mut state, Health::Stopped);
        }
        self.writer.space.sync()?;
        self.writer.write_superblock(Superblock { clean: true, ..self.writer.superblock.clone() })
    }

    pub fn run_commands(&mut self) {
        for (command, reply) in self.log.inbox.take_commands() {
            self.log.end_copying();
            let outcome = match command {
                Command::Resize { capacity, segments } => self.resize(capacity, segments),
                Command::Compact => self.compact(),
            };
            reply.send(outcome);
        }
    }

    fn resize(&mut self, capacity: u64, segments: u32) -> Outcome {
        let before = self.writer.superblock.clone();
        let limit = self.log.append_state().segments().limit();
        let used = {
            let state = self.log.append_state();
            let ends = blocks_of_sectors(capacity)..blocks_of_sectors(before.capacity_sectors);
            if state.is_any_in_flight(ends.clone()) || self.volume.map.next_mapped(ends).is_some() {
                // Written since the caller checked; no write can get a place there from now on.
                return Err(Errno::BUSY);
            }
            state.segments().highest_used().get() + 1
        };
        // What is beyond the limit is neither scanned nor given back, so only a smaller disk has a
        // lower one.
        let is_smaller = capacity < before.capacity_sectors;
        self.log.set_limit(segments.max(if is_smaller { used } else { limit }));
        let most = self.log.shape.segments_most(blocks_of_sectors(capacity));
        let wanted = self.log.append_state().kept_from_writes(&self.volume);
        self.log.raise_limit_for(wanted, most);
        let segments = self.log.append_state().segments().limit();
        self.writer.superblock.capacity_sectors = capacity;
        self.writer.superblock.segments = segments;
        let resized = self.writer.checkpoint(CheckpointKind::Running);
        if resized.is_err() {
            // A later checkpoint must not carry out a resize that was reported as failed.
            self.writer.superblock.capacity_sectors = before.capacity_sectors;
            self.writer.superblock.segments = before.segments;
            // Segments that no superblock knows of must not be used.
            self.log.set_limit(limit);
        }
        resized
    }

    /// Carries out one step of a maintenance pass.
    pub fn step(&mut self) -> Progress {
        self.cleaner.goes_on = false;
        let progress = self.do_step();
        let ends = mutated("log.rate.holds-while-nothing-is-due", !self.cleaner.goes_on, false);
        if ends {
            self.log.end_copying();
        }
        progress
    }

    fn do_step(&mut self) -> Progress {
        let health = self.log.append_state().health();
        match health {
            Health::Stopped => return Progress::Idle,
            Health::Restarting => return self.restart.run_when_given_up(&mut self.writer),
            Health::Running => {}
        }
        if self.log.sync.has_failed() {
            // Nothing can become durable, so nothing can be freed.
            self.log.give_up_waiting(Errno::IO);
            return Progress::Idle;
        }
        if self.writer.provide() == Progress::Made {
            return Progress::Made;
        }
        let due = self.log.append_state().accounting().since_checkpoint() >= self.writer.interval();
        if due {
            return self.writer.try_checkpoint();
        }
        self.cleaner.make_room(&mut self.writer)
    }
}
