//! The re-sorting pass: what guests have scattered is put in the order of its LBAs again, half a
//! segment at a time and up to 8 MiB, so that sequential readers find it in sequence. It works
//! while guests ask for nothing, or now and then ([`GuestLoad`]), and stops when one asks for
//! anything. It has a budget in bytes per day.

use std::time::Instant;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutant};

use super::compact::moves_most;
use super::stage::Move;
use super::{CheckpointKind, Maintenance};
use crate::log::address::BLOCK_BYTES;
use crate::log::ids::{SegmentId, Sequence};
use crate::log::policy::{LIFETIME_MAP, LIFETIME_SORTED};
use crate::log::reserve::SLACK_SEGMENTS;
use crate::log::resort::{Budget, GuestLoad};
use crate::log::segments::{Segment, State};

/// Blocks are rewritten if their runs are shorter than this on average: a read of 128 KiB then
/// takes two places of the file or more.
const RUN_BLOCKS_MIN: usize = 32;
/// Guests must have written so much since the last pass for another one: a look at the whole map
/// takes 5 ns for each block of the disk.
const WRITTEN_MIN_BLOCKS: u64 = (16 << 20) / 4096;
/// Segments that may be in use at once beyond those at the beginning: one part in so many of them.
const GROWTH_PART: u32 = 4;
/// So many are cleaned at most before the next blocks are put in order, and so many are freed with
/// one checkpoint.
const VICTIMS_TOGETHER: u32 = 16;
const DEAD_TOGETHER: u32 = 4;
/// Blocks that are put in order together, at most.
const BATCH_BLOCKS_MAX: u32 = 2048;
/// Segments that their copies may open.
const COPIES_SEGMENTS: u32 = 2;

/// See the module.
#[derive(Default)]
pub struct Resort {
    budget: Budget,
    /// The first block that this pass has not come to.
    next: u64,
    /// Segments that may be in use at most in this pass, and what guests had written when that was
    /// said.
    used_most: Option<(u32, u64)>,
    /// What guests had written when the last pass ended, if one has.
    done_at: Option<u64>,
    /// Since the first look.
    load: Option<GuestLoad>,
    /// What had committed at the last look.
    committed: Sequence,
}

/// Where the segments for copies come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Found,
    /// Segments were cleaned: blocks have moved.
    Made,
}

impl Maintenance {
    /// Whether there may be something to put in order, and it may be done.
    pub fn wants_resort(&self) -> bool {
        let now = self.core.clock.now();
        self.next_resort(now).is_some_and(|at| at <= now)
    }

    /// When what there may be to put in order may be: now, or when the budget is there again.
    pub fn next_resort(&self, now: Instant) -> Option<Instant> {
        let next = self.resort.budget.next(self.core.resorting.limit(), now)?;
        let clock = self.core.append_state().clock;
        let wanted = self.resort.done_at.is_none_or(|done| clock >= done + WRITTEN_MIN_BLOCKS);
        wanted.then_some(next)
    }

    /// Looks what guests have asked for since the last look, reads and records that have committed.
    /// Returns how much it was, and from when on the pass may work if they ask for nothing more.
    pub fn look_at_guests(&mut self) -> (u64, Instant) {
        let (now, committed) = (self.core.clock.now(), self.core.commits());
        let load = self.resort.load.get_or_insert(GuestLoad::unknown(now));
        let records = committed.since(std::mem::replace(&mut self.resort.committed, committed));
        let requests = u64::from(self.core.resorting.take_reads()) + records;
        load.look(requests, now);
        (requests, load.is_light_at())
    }

    /// Goes on with the pass if guests ask for little.
    pub fn resort_if_light(&mut self) {
        if !self.wants_resort() || self.look_at_guests().1 > self.core.clock.now() {
            return;
        }
        if let Err(errno) = self.resort() {
            // It is tried again when guests have written more.
            tracing::debug!("{}: the re-sorting pass ended: {errno}", self.core.name);
            self.end_pass();
        }
    }

    /// Goes on with the pass until it ends, the budget does, or a guest asks for anything.
    pub fn resort(&mut self) -> Outcome {
        let used_most = self.used_most();
        let mut buffer = AlignedBuf::zeroed(moves_most(self.sorted_together()) * BLOCK_BYTES);
        let mut sorted = Ok(());
        while sorted.is_ok() && self.may_go_on() {
            let Some(moves) = self.next_scattered() else {
                self.end_pass();
                self.core.resorting.end_pass();
                break;
            };
            let first = moves[0].lba;
            let before = self.own_blocks();
            sorted = self.sort_from(first, moves, used_most, &mut buffer);
            if sorted.is_err() {
                self.resort.next = first;
            }
            self.charge((self.own_blocks() - before) * BLOCK_BYTES as u64);
        }
        self.seal_stream(LIFETIME_SORTED);
        sorted
    }

    /// Counted from the beginning of the pass, however often guests interrupt it, unless they have
    /// written much.
    fn used_most(&mut self) -> u32 {
        let (used, clock) = {
            let state = self.core.append_state();
            (state.segments.used(), state.clock)
        };
        let most = (used + used / GROWTH_PART + SLACK_SEGMENTS, clock);
        let known = self.resort.used_most.filter(|(_, at)| clock < at + WRITTEN_MIN_BLOCKS);
        self.resort.used_most.insert(known.unwrap_or(most)).0
    }

    fn sort_from(
        &mut self,
        first: u64,
        mut moves: Vec<Move>,
        used_most: u32,
        buffer: &mut AlignedBuf,
    ) -> Outcome {
        if self.make_room_to_sort(used_most)? == Room::Made {
            // Cleaning may have moved some of them.
            self.resort.next = first;
            moves = self.next_scattered().unwrap_or_default();
        }
        if let Err(errno) = self.read_blocks(&moves, buffer) {
            // They stay where they are, and what lies behind them has its turn.
            tracing::debug!("{}: cannot read blocks to put them in order: {errno}", self.core.name);
            return Ok(());
        }
        self.append_in_order(&moves, buffer)
    }

    /// Blocks that maintenance has written, copies and maps; guests' own go on meanwhile.
    fn own_blocks(&self) -> u64 {
        let totals = self.core.append_state().totals;
        totals.relocated_blocks + totals.map_blocks
    }

    fn charge(&mut self, bytes: u64) {
        self.resort.budget.spend(bytes, self.core.clock.now());
        self.core.resorting.add(bytes);
    }

    fn end_pass(&mut self) {
        self.resort.next = 0;
        self.resort.used_most = None;
        self.resort.done_at = Some(self.core.append_state().clock);
    }

    /// Whether no guest has asked for anything since the last look, nothing else is to be done, and
    /// the budget is not used up.
    fn may_go_on(&mut self) -> bool {
        let limit = self.core.resorting.limit();
        let is_idle = self.look_at_guests().0 == 0 || mutant("log.resort.ignores-guests");
        let is_paid = self.resort.budget.left(limit, self.core.clock.now()) > 0;
        is_idle
            && (is_paid || mutant("log.resort.ignores-its-budget"))
            && !self.core.inbox.is_called()
    }

    /// The next live blocks of the disk that are not in order, as many as are put in order
    /// together.
    fn next_scattered(&mut self) -> Option<Vec<Move>> {
        let together = self.sorted_together();
        let mut next = self.resort.next;
        let found = loop {
            let moves = self.next_moves(&mut next, together);
            if moves.as_deref().is_none_or(is_scattered) {
                break moves;
            }
        };
        self.resort.next = next;
        found
    }

    /// Half a segment, so that there is little to make room for, up to 8 MiB: guests that come back
    /// wait for the device until these have been copied.
    fn sorted_together(&self) -> usize {
        (self.core.shape.segment_blocks / 2).min(BATCH_BLOCKS_MAX) as usize
    }

    /// Segments for the copies, with which neither guests nor the host come to lack room: by
    /// freeing what is dead, and by cleaning the emptiest.
    fn make_room_to_sort(&mut self, used_most: u32) -> Result<Room, Errno> {
        let has_room = |maintenance: &Self| {
            let used = maintenance.core.append_state().segments.used();
            let left = maintenance.view().left_for_writes();
            left > SLACK_SEGMENTS + COPIES_SEGMENTS && used <= used_most
        };
        if has_room(self) {
            return Ok(Room::Found);
        }
        self.free_sources()?;
        for _ in 0..VICTIMS_TOGETHER {
            if has_room(self) {
                return Ok(Room::Made);
            }
            let Some((victim, segment)) = self.emptiest() else { break };
            self.clean(victim, segment)?;
            if self.view().dead >= DEAD_TOGETHER {
                self.free_sources()?;
            }
        }
        self.free_sources()?;
        // If that was not enough, the next blocks bring the next victims.
        let left = self.view().left_for_writes();
        if left > COPIES_SEGMENTS { Ok(Room::Made) } else { Err(Errno::NOSPC) }
    }

    /// Frees what has died by copying: replay does not find those copies, so nothing but a
    /// checkpoint does.
    fn free_sources(&mut self) -> Outcome {
        if mutant("log.resort.frees-without-checkpoint") {
            let closed = self.core.append_state().segments.pinned_and_closed();
            self.core.append_state().segments.unpin(&closed);
            return self.release_freeable();
        }
        self.checkpoint(CheckpointKind::Running)
    }

    /// The segment with the fewest live blocks, except those that have been put in order.
    fn emptiest(&self) -> Option<(SegmentId, Segment)> {
        let fits = |segment: &Segment| {
            segment.state == State::Sealed
                && !matches!(segment.lifetime, LIFETIME_MAP | LIFETIME_SORTED)
                && self.is_worth_cleaning(segment)
        };
        let mut best = None;
        self.look_through(|number, segment| {
            if fits(&segment) && best.is_none_or(|(_, it): (_, Segment)| segment.live < it.live) {
                best = Some((number, segment));
            }
        });
        best
    }
}

/// Whether the runs of these blocks in the file are short.
fn is_scattered(moves: &[Move]) -> bool {
    let follows = |pair: &[Move]| pair[0].old.address().is_followed_by(pair[1].old.address());
    // Where the disk has a hole, a reader does not go on either.
    let breaks = moves.windows(2).filter(|pair| !follows(pair)).count();
    breaks * RUN_BLOCKS_MIN > moves.len()
}
