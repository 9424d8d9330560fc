//! Restarts the log after a failed record, and after a crash.

use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{Errno, Outcome, mutated};
use flowstone_log_format::HeadPlace;
use flowstone_log_store::segments::State;
use tracing::{error, info, warn};

use super::Progress;
use super::writer::{CheckpointKind, Writer};
use crate::log::Log;
use crate::log::append::{FULL_RETRY, Full, Head, Health};
use crate::log::reserve::Opener;
use crate::volume::Volume;

/// See the module.
pub struct Restart {
    log: Arc<Log>,
    volume: Arc<Volume>,
    /// When the host last had no space for new heads.
    tried: Option<Instant>,
}

impl Restart {
    pub fn new((log, volume): (Arc<Log>, Arc<Volume>)) -> Self {
        Self { log, volume, tried: None }
    }

    /// After a failed record: once the owners of all records have given them up, opens new heads
    /// and writes a checkpoint that names them. A full host is tried again when a guest writes.
    pub fn run_when_given_up(&mut self, writer: &mut Writer) -> Progress {
        let waits = self.tried.is_some_and(|at| self.log.clock.since(at) < FULL_RETRY);
        if waits || !self.log.append_state().all_given_up() {
            return Progress::Idle;
        }
        let outcome = self.run(writer);
        self.ended(outcome)
    }

    /// Handles a failed restart at open after a crash: on a full host the image opens all the same,
    /// and writes are refused until there is space.
    pub fn put_off(&mut self, errno: Errno) -> Outcome {
        let is_full = is_lack_of_space(errno) && !self.log.sync.has_failed();
        let is_full = mutated("log.open.refuses-a-full-host", is_full, false);
        if !is_full {
            return Err(errno);
        }
        self.ended(Err(errno));
        Ok(())
    }

    /// Records the outcome of a restart. After a successful one, guests already write again: a
    /// record of theirs may have failed by now, which the next restart handles.
    pub fn ended(&mut self, outcome: Outcome) -> Progress {
        let (health, full) = match outcome {
            Ok(()) => {
                info!("{}: writing goes on in a new place", self.log.name);
                let running = Some(Health::Running);
                let health = mutated("log.restart.forgets-what-fails-meanwhile", None, running);
                (health, None)
            }
            Err(errno) if is_lack_of_space(errno) && !self.log.sync.has_failed() => {
                if self.tried.is_none() {
                    warn!("{}: the host has no space to go on in: {errno}", self.log.name);
                }
                (None, Some(errno))
            }
            Err(errno) => {
                error!("{}: cannot start anew ({errno}); no writes until reopened", self.log.name);
                (Some(Health::Stopped), None)
            }
        };
        self.tried = full.map(|_| self.log.clock.now());
        {
            let mut state = self.log.append_state();
            let health = health.unwrap_or(state.health());
            self.log.change_health(&mut state, health);
            state.restart_ended(full.map(|errno| Full { errno, at: self.log.clock.now() }));
        }
        self.log.wake_waiting();
        if full.is_some() { Progress::Idle } else { Progress::Made }
    }

    /// Starts every stream in a fresh segment and makes that durable.
    pub fn run(&mut self, writer: &mut Writer) -> Outcome {
        let fresh = std::array::from_fn(|stream| self.is_fresh(stream));
        self.log.append_state().end_heads(fresh);
        writer.release_freeable()?;
        for stream in 0..self.log.shape.streams as u8 {
            if self.is_fresh(stream.into()) {
                continue;
            }
            let for_trims = {
                let state = self.log.append_state();
                let reserve = state.reserve(&self.volume, true);
                let available = writer.space.available(&state);
                !reserve.may_open(Opener::Write, available, state.trim_heads())
            };
            let (segment, incarnation) = writer.space.take_segment(stream)?;
            let place = HeadPlace::start_of(segment, incarnation);
            let head = Head { place, has_space: true, for_trims };
            self.log.append_state().set_head(stream, head);
        }
        let map_segments = self.log.append_state().segments().used_for_maps();
        if map_segments > self.log.append_state().reserve(&self.volume, true).map_full {
            // Each restart takes a segment for the map, and there may be many before the next
            // cleaning.
            writer.outdate_sparse_map();
        }
        writer.checkpoint(CheckpointKind::Running)?;
        self.log.change_health(&mut self.log.append_state(), Health::Running);
        Ok(())
    }

    /// Returns whether the head was left by a failed restart and nothing was written to it: a new
    /// head for each attempt would use up the reserve.
    fn is_fresh(&self, stream: usize) -> bool {
        let state = self.log.append_state();
        let place = state.heads()[stream].place;
        let segment = state.segments().get(place.segment);
        self.tried.is_some()
            && place.block == 0
            && segment.state == State::Open
            && segment.incarnation == place.incarnation
    }
}

/// Errors that may pass without an operator's help.
pub fn is_lack_of_space(errno: Errno) -> bool {
    mutated("log.restart.full-host-is-the-end", matches!(errno, Errno::NOSPC | Errno::DQUOT), false)
}
