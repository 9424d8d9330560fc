//! The cleaner: when cleaning is due, and of which segments. Live blocks of a victim are copied, so
//! that the whole segment dies.

mod copying;
mod pipe;
mod read_ahead;
#[cfg(test)]
pub mod refusal;
mod stage;
mod survey;
mod transfers;
mod victims;

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Errno, Outcome};
use flowstone_log_format::{LIFETIME_CLEANED, LIFETIME_MAP, Sequence};

use self::pipe::Pipe;
use self::stage::Stage;
use self::survey::Survey;
use super::Progress;
use super::candidates::Chosen;
use super::writer::{CheckpointKind, Writer};
use crate::log::Log;
use crate::log::append::Health;
use crate::log::reserve::Step;
use crate::policy::Lifetimes;
use crate::volume::Volume;

/// Sparse segments cleaned before other work gets its turn.
const SPARSE_TOGETHER: u32 = 8;
/// Guests that write at most this many records in [`RELEASE_TIME`] are quiet: there is always a log
/// file or a journal that is written now and then.
const QUIET_RECORDS: u64 = 32;

/// See the module.
pub struct Cleaner {
    log: Arc<Log>,
    volume: Arc<Volume>,
    lifetimes: Lifetimes,
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
    /// Whether the next step is expected to copy, too.
    pub goes_on: bool,
    /// Committed sequence number when a sparse segment could not be cleaned.
    sparse_tried: Option<Sequence>,
}

impl Cleaner {
    pub fn new((log, volume): (Arc<Log>, Arc<Volume>)) -> Self {
        Self {
            log,
            volume,
            lifetimes: Lifetimes::default(),
            filling: None,
            guest_clock: 0,
            waited: Duration::ZERO,
            stage: Stage::default(),
            pipe: None,
            next: None,
            goes_on: false,
            sparse_tried: None,
        }
    }

    /// Frees a segment if they are running out: cleans a victim, or makes the dead segments
    /// freeable.
    pub fn make_room(&mut self, writer: &mut Writer) -> Progress {
        let view = writer.space.view();
        let done = match view.next_step() {
            Step::Nothing => return Progress::Idle,
            Step::SyncAndFree => writer.release_freeable(),
            Step::Checkpoint => return writer.try_checkpoint(),
            Step::CleanMap => writer.shrink_map().or_else(|_| self.clean_any(writer)),
            Step::Clean => self.clean_any(writer),
        };
        match done {
            Ok(()) => {
                // Otherwise guests would at once write the space that the next victim is to free.
                self.goes_on = self.begun_victim().is_some();
                Progress::Made
            }
            Err(_) if writer.space.view().dead > 0 => writer.try_checkpoint(),
            Err(errno) => {
                if view.is_urgent() {
                    self.log.give_up_waiting(errno);
                }
                Progress::Idle
            }
        }
    }

    fn clean_any(&mut self, writer: &mut Writer) -> Outcome {
        let found = self.begun_victim().or_else(|| self.choose_victim());
        let view = writer.space.view();
        if view.dead > 0 && writer.is_checkpoint_cheaper(&view, found.as_ref().map(|it| &it.1)) {
            return writer.checkpoint(CheckpointKind::Running);
        }
        let done = match found {
            Some(victim) => self.clean_one(writer, victim),
            None if writer.space.view().is_urgent() => self.clean_stream(writer),
            None => Err(Errno::NOSPC),
        };
        match done {
            // The segments that copies need may be those that the map has beyond its share.
            Err(Errno::NOSPC) => writer.shrink_map(),
            done => done,
        }
    }

    /// Ends the open output streams but one, and copies into that: their unused room may be all
    /// there is to gain.
    fn clean_stream(&mut self, writer: &mut Writer) -> Outcome {
        let lifetime = writer.streams.merge(LIFETIME_CLEANED);
        let victim = self.choose_victim().ok_or(Errno::NOSPC)?;
        self.clean_into(writer, lifetime, victim)
    }

    /// Cleans sparse segments, as long as guests are quiet: `seen` is the number of the last record
    /// that had committed when the pause began. Discarded blocks lie scattered between live ones;
    /// cleaning gives their space back to the host even if no write needs it. Copying one block
    /// frees two: low write amplification. Only a few segments at a time: the victims are free
    /// after the next checkpoint, and work that comes meanwhile must not wait for all of them.
    pub fn clean_sparse(&mut self, writer: &mut Writer, seen: Sequence) {
        for cleaned in 0..SPARSE_TOGETHER {
            if !self.is_quiet(seen) || self.log.inbox.is_stopping() {
                return;
            }
            let Some(victim) = self.sparsest() else { return };
            if self.clean(writer, victim).is_err() {
                if cleaned == 0 {
                    self.sparse_tried = Some(self.log.append_state().committed());
                }
                return;
            }
        }
    }

    /// Returns whether guests write next to nothing, and no request waits for the maintenance
    /// worker.
    fn is_quiet(&self, seen: Sequence) -> bool {
        let state = self.log.append_state();
        let waits = state.wants_room() || state.health() != Health::Running;
        !waits && state.committed().since(seen) <= QUIET_RECORDS
    }

    /// Returns whether the memory for copies is held.
    pub fn has_memory(&self) -> bool {
        self.pipe.is_some()
    }

    /// Releases the memory for copies.
    pub fn release_memory(&mut self) {
        self.stage = Stage::default();
        (self.pipe, self.next) = (None, None);
        self.log.run_bytes.store(0, Ordering::Relaxed);
    }

    /// Copies the live blocks of `victim` into the stream of their lifetime.
    pub fn clean(&mut self, writer: &mut Writer, victim: Chosen) -> Outcome {
        let outcome = self.clean_one(writer, victim);
        self.log.end_copying();
        outcome
    }

    fn clean_one(&mut self, writer: &mut Writer, victim: Chosen) -> Outcome {
        let (number, segment) = victim;
        if segment.lifetime == LIFETIME_MAP {
            writer.outdate_map_segment(number);
            return writer.checkpoint_without(&[number]);
        }
        let age = self.log.append_state().accounting().clock().saturating_sub(segment.birth);
        if let Some(count) = self.log.copy_lifetimes.get() {
            self.lifetimes.limit(*count);
        }
        let mut lifetime = self.lifetimes.lifetime_for(segment.lifetime, age);
        if writer.space.view().is_tight() {
            lifetime = writer.streams.merge(lifetime);
        }
        self.clean_into(writer, lifetime, victim)
    }
}
