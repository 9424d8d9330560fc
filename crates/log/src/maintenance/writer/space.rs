//! Host space of segments: allocation and deallocation.
//!
//! Writes to a segment that has been written before are cheaper: for space that was allocated and
//! never written, the host file system changes its own metadata with every write or every
//! fdatasync. So some freed segments keep their space while guests write, and lose it when guests
//! pause.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Errno, Outcome, mutated};
use flowstone_log_format::{Incarnation, SegmentId, Sequence};
use flowstone_log_store::BlockingStore;
use flowstone_log_store::segments::LOOK_MOST;
use tracing::warn;

use crate::log::Log;
use crate::log::append::{AppendState, FULL_RETRY};
use crate::log::reserve::{SLACK_SEGMENTS, View, told_from};
use crate::maintenance::Progress;
use crate::volume::Volume;

/// Ready segments kept beyond the reserve, even when nothing is written.
const READY_KEPT: u32 = 2;
/// Inverse of the maximum share of the image in freed segments that keep their space. They are also
/// limited to the blocks appended between two checkpoints: that is what the next checkpoint frees.
const POOL_SHARE: u32 = 8;

/// Guests that use up all ready segments within this time write fast.
const FAST: Duration = Duration::from_millis(100);
/// Maximum bytes allocated at once for guests that write fast.
const AHEAD_BYTES: u64 = 64 << 20;

/// Number of segments to allocate at once: more while guests use them fast.
#[derive(Debug)]
pub struct SpaceAhead {
    segments: u32,
    /// When there were enough.
    enough_at: Option<Instant>,
}

impl SpaceAhead {
    const NONE: Self = Self { segments: 1, enough_at: None };

    fn is_enough(&mut self, now: Instant) {
        self.enough_at.get_or_insert(now);
    }

    /// Returns how many to allocate when segments are short.
    fn is_short(&mut self, now: Instant, most: u32) -> u32 {
        let Some(at) = self.enough_at.take() else { return self.segments };
        let is_fast = now.duration_since(at) < FAST * self.segments;
        self.segments = if is_fast { (self.segments * 2).min(most.max(1)) } else { 1 };
        self.segments
    }
}

/// The store, as the maintenance worker uses it.
pub struct Space {
    log: Arc<Log>,
    volume: Arc<Volume>,
    /// Stays out of the host's page cache: maps are not read again before the next open, and blocks
    /// that are put in order are cold, or a journal.
    pub store: BlockingStore,
    ahead: SpaceAhead,
    /// When the host last reported that it has no space.
    host_full: Option<Instant>,
}

impl Space {
    pub fn new(log: Arc<Log>, volume: Arc<Volume>) -> io::Result<Self> {
        let mut store = log.store.blocking()?;
        store.keep_out_of_page_cache();
        Ok(Self { log, volume, store, ahead: SpaceAhead::NONE, host_full: None })
    }

    /// Makes everything durable that has been written to the file.
    pub fn sync(&mut self) -> Outcome {
        let committed = self.log.append_state().committed();
        let outcome = self.store.sync(&self.log.sync);
        match outcome {
            Ok(()) => {
                let mut state = self.log.append_state();
                let committed =
                    mutated("log.sync.promises-what-came-later", committed, state.committed());
                state.mark_durable_before(committed);
            }
            Err(_) => self.log.wakers.wake_all(),
        }
        outcome
    }

    /// Allocates host space for a head or a reserve segment, if one is wanted: for a reserve
    /// segment only if the log has gone on beyond `checkpointed`, the end of the newest checkpoint,
    /// or if a request waits for room.
    pub fn provide(&mut self, checkpointed: Sequence) -> Progress {
        let waiting_head = self.log.append_state().head_without_space();
        if let Some(segment) = waiting_head {
            return self.provide_head(segment);
        }
        if self.host_full.is_some_and(|at| self.log.clock.since(at) < FULL_RETRY) {
            return Progress::Idle;
        }
        let (wanted, ready, most, unused) = {
            let state = self.log.append_state();
            let unused = state.next_sequence() == checkpointed && !state.wants_room();
            let wanted = state.kept_from_writes(&self.volume) + READY_KEPT;
            let most = AHEAD_BYTES / self.log.shape.segment_bytes();
            let most = (most as u32).min(state.segments().limit() / POOL_SHARE);
            (wanted, state.segments().ready(), most, unused)
        };
        if unused {
            return Progress::Idle;
        }
        if ready >= wanted {
            self.ahead.is_enough(self.log.clock.now());
            return Progress::Idle;
        }
        // The missing segments, and those allocated in advance; both counts include the first.
        let ahead = self.ahead.is_short(self.log.clock.now(), most);
        if self.obtain(wanted - ready - 1 + ahead - 1).is_err() {
            return Progress::Idle;
        }
        self.log.announce_room();
        Progress::Made
    }

    /// Makes `segments` segments ready. On a full host none is kept.
    pub fn get_ahead(&mut self, segments: u32) -> Outcome {
        while self.log.append_state().segments().ready() < segments {
            if let Err(errno) = self.obtain(0) {
                self.release_reserve();
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Makes a free segment ready, and up to `more` that follow it in the file: each call to the
    /// host holds up writes to the file. If the host has no space for it, the segment may lie
    /// behind the end of a device; then the lowest free one is tried.
    fn obtain(&mut self, more: u32) -> Outcome {
        let (first, more) = {
            let mut state = self.log.append_state();
            let first = state.segments_mut().take_free().ok_or(Errno::NOSPC)?;
            (first, state.segments_mut().take_free_behind(first, more))
        };
        if more > 0 && self.obtain_run(first, more) {
            return Ok(());
        }
        let Err(errno) = self.make_ready(first) else { return Ok(()) };
        let other = self.log.append_state().segments_mut().take_free_before(first);
        other.map_or(Err(errno), |other| self.make_ready(other))
    }

    /// Makes a segment ready together with `more` that follow it, or deallocates those.
    fn obtain_run(&mut self, first: SegmentId, more: u32) -> bool {
        let end = first.get() + 1 + more;
        let allocated = self.store.allocate(first..SegmentId::new(end)).is_ok();
        let allocated = mutated("log.space.ready-without-space", allocated, true);
        let behind: Vec<_> = SegmentId::range(first.get() + 1..end).collect();
        if allocated {
            let mut state = self.log.append_state();
            state.segments_mut().make_ready(first);
            behind.into_iter().for_each(|segment| state.segments_mut().make_ready(segment));
        } else {
            // The host may have allocated some of them.
            self.punch(&behind);
        }
        allocated
    }

    fn make_ready(&mut self, segment: SegmentId) -> Outcome {
        let outcome = self.allocate(segment);
        let mut state = self.log.append_state();
        match outcome {
            Ok(()) => state.segments_mut().make_ready(segment),
            Err(_) => state.segments_mut().put_back(segment),
        }
        outcome
    }

    fn provide_head(&mut self, segment: SegmentId) -> Progress {
        if let Err(errno) = self.allocate(segment) {
            self.log.give_up_waiting(errno);
            return Progress::Idle;
        }
        self.log.append_state().give_head_space(segment);
        self.log.announce_room();
        Progress::Made
    }

    fn allocate(&mut self, segment: SegmentId) -> Outcome {
        let outcome = self.store.allocate(segment..segment.next());
        self.host_full = match outcome {
            Ok(()) => None,
            Err(errno) => {
                if self.host_full.is_none() {
                    warn!("{}: the host gives no more space: {errno}", self.log.name);
                }
                Some(self.log.clock.now())
            }
        };
        outcome
    }

    /// After a crash it is unknown which free segments are allocated: all are deallocated, and so
    /// is the file behind those that the image has ever used. Space had been allocated there for
    /// writes that never came.
    pub fn punch_free(&mut self) {
        let (free, never_used, limit) = {
            let mut state = self.log.append_state();
            let segments = state.segments_mut();
            (segments.take_all_free(), segments.never_used(), segments.limit())
        };
        let last = SegmentId::new(never_used.get().saturating_sub(1));
        let never_used = mutated("log.space.punches-the-last-that-was-used", never_used, last);
        let free: Vec<SegmentId> = free.into_values().collect();
        self.punch(&free);
        let size = self.log.store.size().unwrap_or(0);
        if let Err(errno) = self.store.free_within(never_used..SegmentId::new(limit), size) {
            warn!("{}: cannot punch segments from {never_used} on: {errno}", self.log.name);
        }
    }

    /// Deallocates the host space of free segments: neighbours together, in file order.
    pub fn punch(&mut self, segments: &[SegmentId]) {
        let mut sorted = segments.to_vec();
        sorted.sort_unstable();
        let runs: Vec<_> = sorted.chunk_by(|one, next| next.get() == one.get() + 1).collect();
        self.volume.discards.count_runs(runs.len());
        for run in runs {
            if let Err(errno) = self.store.free(run[0]..run[run.len() - 1].next()) {
                // They stay free; only their host space is not deallocated.
                let (name, count) = (&self.log.name, run.len());
                warn!("{name}: cannot punch {count} segments from {} on: {errno}", run[0]);
                let goes_on = mutated("log.space.loses-what-cannot-be-punched", true, false);
                if !goes_on {
                    return;
                }
            }
        }
        for few in segments.chunks(LOOK_MOST) {
            self.log.append_state().segments_mut().add_free(few);
        }
    }

    /// Returns the number of segments that may be used: ready ones, and those that the host has not
    /// refused.
    pub fn available(&self, state: &AppendState) -> u32 {
        let hidden = if self.host_full.is_some() { 0 } else { state.segments().obtainable() };
        state.segments().ready() + hidden
    }

    /// Opens a segment to append to. The caller has checked that it may be opened.
    pub fn take_segment(&mut self, lifetime: u8) -> Result<(SegmentId, Incarnation), Errno> {
        loop {
            let opened = self.log.append_state().segments_mut().open(lifetime);
            if let Some(opened) = opened {
                return Ok(opened);
            }
            self.obtain(0)?;
        }
    }

    /// Returns how many freed segments keep their space while guests write. Never-written ones do
    /// not count: they must not displace the others. None if the drive is told of freed segments:
    /// it copies less. `interval` is that of checkpoints, in blocks.
    pub fn recycled_kept_in_use(&self, interval: u64) -> u32 {
        if self.log.telling.load(Ordering::Relaxed) {
            return 0;
        }
        let state = self.log.append_state();
        let pool = interval as u32 / self.log.shape.segment_blocks;
        let pool = pool.min(state.segments().limit() / POOL_SHARE).max(READY_KEPT);
        state.kept_from_writes(&self.volume) + pool
    }

    /// Returns what decides whether room must be made.
    pub fn view(&self) -> View {
        let mut state = self.log.append_state();
        let (dead, freeable) = state.segments().dead();
        let segment_blocks = self.log.shape.segment_blocks;
        let view = View {
            reserve: state.reserve(&self.volume, true),
            available: self.available(&state),
            trim_heads: state.trim_heads(),
            dead,
            freeable,
            map_segments: state.segments().used_for_maps(),
            segment_blocks,
            told_from: told_from(
                state.segments().limit(),
                self.log.telling.load(Ordering::Relaxed),
            ),
        };
        let blocks = |segments: u32| u64::from(segments) * u64::from(segment_blocks);
        // Segments that a sync frees count as free.
        state
            .rate_mut()
            .set_room(blocks(view.left_for_writes() + freeable), blocks(SLACK_SEGMENTS));
        view
    }

    /// Returns whether there are more ready segments than are kept when nothing is written.
    pub fn has_surplus(&self, state: &AppendState) -> bool {
        state.segments().ready() > state.kept_from_writes(&self.volume) + READY_KEPT
    }

    /// Deallocates the host space of all ready segments.
    pub fn release_reserve(&mut self) {
        self.release_beyond(0);
    }

    /// Deallocates the host space of ready segments that only a busy guest needs.
    pub fn trim_reserve(&mut self) {
        let kept = self.log.append_state().kept_from_writes(&self.volume);
        self.release_beyond(kept + READY_KEPT);
    }

    /// Deallocates the host space of ready segments beyond `keep`.
    fn release_beyond(&mut self, keep: u32) {
        let mut released = Vec::new();
        loop {
            let few = self.log.append_state().segments_mut().release_ready(keep);
            if few.is_empty() {
                break;
            }
            released.extend(few);
        }
        self.punch(&released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates guests that use all ready segments beyond the wanted ones after `time`.
    fn taken_every(space: &mut SpaceAhead, now: &mut Instant, time: Duration) -> u32 {
        space.is_enough(*now);
        space.is_enough(*now + time / 2);
        *now += time;
        space.is_short(*now, 8)
    }

    #[test]
    fn more_is_got_at_once_while_guests_write_fast() {
        let (mut space, mut now) = (SpaceAhead::NONE, Instant::now());
        assert_eq!(space.is_short(now, 8), 1);
        let fast = [2, 4, 8, 8].map(|_| taken_every(&mut space, &mut now, FAST / 2));
        assert_eq!(fast, [2, 4, 8, 8]);
        assert_eq!(taken_every(&mut space, &mut now, 7 * FAST), 8, "8 lasted for so long");
        assert_eq!(taken_every(&mut space, &mut now, 9 * FAST), 1);
        assert_eq!(taken_every(&mut space, &mut now, FAST * 2), 1);
    }
}
