//! Host space for segments: where it comes from, and when it is given back.
//!
//! Writes to a segment that has been written before are cheaper: for space that was allocated and
//! never written, the host file system changes its own metadata with every write or every
//! fdatasync. So some freed segments keep their space while guests write, and give it back when
//! guests pause.

use std::time::Instant;

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::FileOp;
use tracing::warn;

use super::{INTERVAL_MIN_BLOCKS, Maintenance, Progress};
use crate::log::append::{AppendState, FULL_RETRY, Head};
use crate::log::ids::{Incarnation, SegmentId};

/// Ready segments that are kept beyond those in reserve, also when nothing is written.
const READY_KEPT: u32 = 2;
/// Freed segments are kept for use as they are up to one part in so many of the image, and up to
/// what is appended between two checkpoints: that is what the next checkpoint frees.
const POOL_SHARE: u32 = 8;

impl Maintenance {
    /// Gets host space for a head or a segment in reserve, if one is wanted.
    pub fn provide(&mut self) -> Progress {
        let waiting_head = {
            let state = self.core.append_state();
            let streams = self.core.shape.streams as usize;
            let wanted = state.wants_room();
            let wants = |head: &&Head| !head.has_space && wanted;
            state.heads[..streams].iter().find(wants).map(|head| head.place.segment)
        };
        if let Some(segment) = waiting_head {
            return self.provide_head(segment);
        }
        if self.host_full.is_some_and(|at| at.elapsed() < FULL_RETRY) {
            return Progress::Idle;
        }
        let is_enough = {
            let state = self.core.append_state();
            let unused =
                state.next_sequence() == self.superblock.next_sequence && !state.wants_room();
            let wanted = state.kept_from_writes(&self.core.map) + READY_KEPT;
            unused || state.segments.ready() >= wanted
        };
        if is_enough || self.obtain().is_err() {
            return Progress::Idle;
        }
        self.announce_room();
        Progress::Made
    }

    /// Makes a free segment ready. If the host has no space for the one whose turn it is, that may
    /// lie behind the end of a device, and the first one of all need not.
    fn obtain(&mut self) -> Outcome {
        let segment = self.core.append_state().segments.take_free().ok_or(Errno::NOSPC)?;
        let Err(errno) = self.make_ready(segment) else { return Ok(()) };
        let other = self.core.append_state().segments.take_free_before(segment);
        other.map_or(Err(errno), |other| self.make_ready(other))
    }

    fn make_ready(&mut self, segment: SegmentId) -> Outcome {
        let outcome = self.allocate(segment);
        let mut state = self.core.append_state();
        match outcome {
            Ok(()) => state.segments.make_ready(segment),
            Err(_) => state.segments.put_back(segment),
        }
        outcome
    }

    fn provide_head(&mut self, segment: SegmentId) -> Progress {
        if let Err(errno) = self.allocate(segment) {
            self.give_up_waiting(errno);
            return Progress::Idle;
        }
        for head in &mut self.core.append_state().heads {
            head.has_space |= head.place.segment == segment;
        }
        self.announce_room();
        Progress::Made
    }

    fn allocate(&mut self, segment: SegmentId) -> Outcome {
        let offset = self.core.shape.address(segment, 0).offset();
        let bytes = self.core.shape.segment_bytes();
        let outcome = self.file.run(FileOp::Allocate { offset, bytes });
        self.host_full = match outcome {
            Ok(()) => None,
            Err(errno) => {
                if self.host_full.is_none() {
                    warn!("{}: the host gives no more space: {errno}", self.core.name);
                }
                Some(Instant::now())
            }
        };
        outcome
    }

    /// After a crash it is not known which free segments have host space: all give it back.
    pub fn punch_free(&mut self) {
        let free = self.core.append_state().segments.take_all_free();
        self.punch(&free);
    }

    /// Gives the host space of free segments back.
    pub fn punch(&mut self, segments: &[SegmentId]) {
        self.core.discards.count_runs(segments.len());
        for segment in segments {
            let offset = self.core.shape.address(*segment, 0).offset();
            let bytes = self.core.shape.segment_bytes();
            if let Err(errno) = self.file.run(FileOp::Discard { offset, bytes }) {
                // It stays free; only its host space is not given back.
                warn!("{}: cannot punch segment {segment}: {errno}", self.core.name);
            }
        }
        self.core.append_state().segments.add_free(segments);
    }

    /// Segments that may be used: those that are ready, and those that the host has not refused.
    pub fn available(&self, state: &AppendState) -> u32 {
        let hidden = if self.host_full.is_some() { 0 } else { state.segments.obtainable() };
        state.segments.ready() + hidden
    }

    /// A segment to append to. The caller has made sure that it may be opened.
    pub fn take_segment(&mut self, lifetime: u8) -> Result<(SegmentId, Incarnation), Errno> {
        loop {
            let opened = self.core.append_state().segments.open(lifetime);
            if let Some(opened) = opened {
                return Ok(opened);
            }
            self.obtain()?;
        }
    }

    /// How many freed segments are kept for use as they are while guests write.
    pub fn ready_kept_in_use(&self) -> u32 {
        let state = self.core.append_state();
        let pool = INTERVAL_MIN_BLOCKS as u32 / self.core.shape.segment_blocks;
        let pool = pool.min(state.segments.limit() / POOL_SHARE).max(READY_KEPT);
        state.kept_from_writes(&self.core.map) + pool
    }

    /// Ready segments beyond those that are kept when nothing is written.
    pub fn has_surplus(&self, state: &AppendState) -> bool {
        state.segments.ready() > state.kept_from_writes(&self.core.map) + READY_KEPT
    }

    /// Gives back the host space of all ready segments.
    pub fn release_reserve(&mut self) {
        let ready = self.core.append_state().segments.release_ready(0);
        self.punch(&ready);
    }

    /// Gives back the host space of ready segments that only a busy guest needs.
    pub fn trim_reserve(&mut self) {
        let surplus = {
            let mut state = self.core.append_state();
            let keep = state.kept_from_writes(&self.core.map) + READY_KEPT;
            state.segments.release_ready(keep)
        };
        self.punch(&surplus);
    }
}
