//! The log starts anew: after a failed record, and after a crash.

use std::time::Instant;

use flowstone_block::{Errno, Outcome, mutant};
use tracing::{error, info, warn};

use super::{CheckpointKind, Keeper, Progress};
use crate::log::reserve::Opener;
use crate::log::segments::State;
use crate::log::superblock::HeadPlace;
use crate::log::tail::{FULL_RETRY, Full, Head, Health};

impl Keeper {
    /// After a failed record: once all its guests are told, new heads and a checkpoint that names
    /// them. A host that is full is asked again whenever a guest wants to write.
    pub fn restart_if_settled(&mut self) -> Progress {
        let waits = self.restart_tried.is_some_and(|at| at.elapsed() < FULL_RETRY);
        if waits || !self.core.tail().all_settled() {
            return Progress::Idle;
        }
        let (health, full) = match self.restart() {
            Ok(()) => {
                info!("{}: writing goes on in a new place", self.core.name);
                (Health::Running, None)
            }
            Err(errno) if is_lack_of_space(errno) && !self.core.sync.has_failed() => {
                if self.restart_tried.is_none() {
                    warn!("{}: the host has no space to go on in: {errno}", self.core.name);
                }
                (Health::Restarting, Some(errno))
            }
            Err(errno) => {
                error!("{}: cannot start anew ({errno}); no writes until reopened", self.core.name);
                (Health::Stopped, None)
            }
        };
        self.restart_tried = full.map(|_| Instant::now());
        {
            let mut tail = self.core.tail();
            tail.health = health;
            tail.restart_full = full.map(Full::now);
            self.core.show(&tail);
        }
        self.core.tell_room();
        if full.is_some() { Progress::Idle } else { Progress::Made }
    }

    /// Starts every stream in a fresh segment and makes that durable.
    pub fn restart(&mut self) -> Outcome {
        self.end_heads();
        self.release_loose_dead()?;
        for stream in 0..self.core.shape.streams as u8 {
            if self.is_fresh(stream) {
                continue;
            }
            let for_trims = {
                let tail = self.core.tail();
                let reserve = tail.reserve(&self.core.map, true);
                let available = self.available(&tail);
                !reserve.may_open(Opener::Write, available, tail.trim_heads())
            };
            let (segment, serial) = self.take_segment(stream)?;
            let place = HeadPlace { serial, segment, block: 0 };
            let head = Head { place, has_space: true, for_trims };
            self.core.tail().heads[usize::from(stream)] = head;
        }
        let map_segments = self.core.tail().segments.used_for_maps();
        if map_segments > self.core.tail().reserve(&self.core.map, true).map_full {
            // Each start takes a segment for the map, and there may be many before the next cleaning.
            self.outdate_sparse_map();
        }
        self.checkpoint(CheckpointKind::Running)?;
        let mut tail = self.core.tail();
        tail.health = Health::Running;
        self.core.show(&tail);
        Ok(())
    }

    /// Nothing is appended any more where a record could not be written.
    fn end_heads(&mut self) {
        let fresh: Vec<bool> =
            (0..self.core.shape.streams as u8).map(|stream| self.is_fresh(stream)).collect();
        let mut tail = self.core.tail();
        tail.forget();
        let clock = tail.clock;
        for (stream, fresh) in fresh.into_iter().enumerate() {
            let segment = tail.heads[stream].place.segment;
            if fresh {
                continue;
            }
            tail.heads[stream].for_trims = false;
            // After a crash they are sealed already.
            if tail.segments.get(segment).state == State::Open {
                tail.segments.seal(segment, clock);
            }
        }
    }

    /// Whether the head is one that a restart which failed has left, and nothing was written to: to
    /// take another one for each attempt would use up what is kept for them.
    fn is_fresh(&self, stream: u8) -> bool {
        let tail = self.core.tail();
        let place = tail.heads[usize::from(stream)].place;
        let segment = tail.segments.get(place.segment);
        self.restart_tried.is_some()
            && place.block == 0
            && segment.state == State::Open
            && segment.serial == place.serial
    }
}

/// What may pass without anybody looking after the image.
fn is_lack_of_space(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT) && !mutant("log.restart.full-host-is-the-end")
}
