//! The re-sorting pass: puts blocks that guests have scattered back in LBA order, half a segment at
//! a time and up to 8 MiB, so that sequential readers find them in sequence. It works while guests
//! make no or few requests ([`GuestLoad`]), and stops at the next request. It has a budget in bytes
//! per day.

use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_log_format::{BLOCK_BYTES, LIFETIME_SORTED, Sequence};
use flowstone_log_store::segments::{Kind, LOOK_MOST};

use super::candidates::emptiest;
use super::cleaner::Cleaner;
use super::writer::{CheckpointKind, Move, Writer, moves_most, next_moves};
use crate::log::Log;
use crate::log::reserve::SLACK_SEGMENTS;
use crate::resort::{Budget, GuestLoad};
use crate::volume::Volume;

/// Blocks are rewritten if their runs are shorter than this on average: a read of 128 KiB then
/// takes two or more reads of the file.
const RUN_BLOCKS_MIN: usize = 32;
/// Blocks that guests must have written since the last pass for another one: a scan of the whole
/// map takes 5 ns for each block of the disk.
const WRITTEN_MIN_BLOCKS: u64 = (16 << 20) / 4096;
/// Inverse of the share by which the segments in use may grow during a pass.
const GROWTH_PART: u32 = 4;
/// Maximum number of segments cleaned before the next blocks are sorted, and number of segments
/// freed with one checkpoint.
const VICTIMS_TOGETHER: u32 = 16;
const DEAD_TOGETHER: u32 = 4;
/// Maximum number of blocks sorted together.
const BATCH_BLOCKS_MAX: u32 = 2048;
/// Segments that their copies may open.
const COPIES_SEGMENTS: u32 = 2;

/// See the module.
pub struct Resort {
    log: Arc<Log>,
    volume: Arc<Volume>,
    budget: Budget,
    /// First block that this pass has not reached.
    next: u64,
    /// Maximum number of segments in use during this pass, and the log's clock when it was set.
    used_most: Option<(u32, u64)>,
    /// The log's clock when the last pass ended, if any has.
    done_at: Option<u64>,
    /// Load since the first look.
    load: Option<GuestLoad>,
    /// Committed sequence number at the last look.
    committed: Sequence,
}

/// Origin of the room for the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Found,
    /// Segments were cleaned, so blocks have moved.
    Made,
}

impl Resort {
    pub fn new((log, volume): (Arc<Log>, Arc<Volume>)) -> Self {
        Self {
            log,
            volume,
            budget: Budget::default(),
            next: 0,
            used_most: None,
            done_at: None,
            load: None,
            committed: Sequence::default(),
        }
    }

    /// Returns whether the pass may have work and the budget for it.
    pub fn is_due(&self) -> bool {
        let now = self.log.clock.now();
        self.due_at(now).is_some_and(|at| at <= now)
    }

    /// Returns when the pass may work: now, or when the budget is renewed; `None` if it has no
    /// work.
    pub fn due_at(&self, now: Instant) -> Option<Instant> {
        let next = self.budget.next(self.volume.resorting.limit(), now)?;
        let clock = self.log.append_state().accounting().clock();
        let wanted = self.done_at.is_none_or(|done| clock >= done + WRITTEN_MIN_BLOCKS);
        wanted.then_some(next)
    }

    /// Adds the reads and commits of guests since the last look to the load. Returns their number,
    /// and from when on the pass may work if there are no more.
    pub fn look_at_guests(&mut self) -> (u64, Instant) {
        let (now, committed) = (self.log.clock.now(), self.log.commits());
        let load = self.load.get_or_insert(GuestLoad::unknown(now));
        let records = committed.since(std::mem::replace(&mut self.committed, committed));
        let requests = u64::from(self.volume.resorting.take_reads()) + records;
        load.look(requests, now);
        (requests, load.is_light_at())
    }

    /// Continues the pass if the load is light.
    pub fn run_if_light(&mut self, cleaner: &mut Cleaner, writer: &mut Writer) {
        if !self.is_due() || self.look_at_guests().1 > self.log.clock.now() {
            return;
        }
        if let Err(errno) = self.run(cleaner, writer) {
            // Retried when guests have written more.
            tracing::debug!("{}: the re-sorting pass ended: {errno}", self.log.name);
            self.end_pass();
        }
    }

    /// Continues the pass until it ends, the budget is spent, or a guest makes a request.
    pub fn run(&mut self, cleaner: &mut Cleaner, writer: &mut Writer) -> Outcome {
        let used_most = self.used_most();
        let mut buffer = AlignedBuf::zeroed(moves_most(self.sorted_together()) * BLOCK_BYTES);
        let mut sorted = Ok(());
        while sorted.is_ok() && self.may_go_on() {
            let Some(moves) = self.next_scattered() else {
                self.end_pass();
                self.volume.resorting.end_pass();
                break;
            };
            let first = moves[0].lba;
            let before = self.own_blocks();
            sorted = self.sort_from(cleaner, writer, (first, moves), used_most, &mut buffer);
            if sorted.is_err() {
                self.next = first;
            }
            self.charge((self.own_blocks() - before) * BLOCK_BYTES as u64);
        }
        writer.streams.seal(LIFETIME_SORTED);
        sorted
    }

    /// Returns the maximum number of segments in use, set at the beginning of the pass, however
    /// often guests interrupt it, unless they have written much.
    fn used_most(&mut self) -> u32 {
        let (used, clock) = {
            let state = self.log.append_state();
            (state.segments().used(), state.accounting().clock())
        };
        let most = (used + used / GROWTH_PART + SLACK_SEGMENTS, clock);
        let known = self.used_most.filter(|(_, at)| clock < at + WRITTEN_MIN_BLOCKS);
        self.used_most.insert(known.unwrap_or(most)).0
    }

    fn sort_from(
        &mut self,
        cleaner: &mut Cleaner,
        writer: &mut Writer,
        (first, mut moves): (u64, Vec<Move>),
        used_most: u32,
        buffer: &mut AlignedBuf,
    ) -> Outcome {
        if make_room_to_sort(cleaner, writer, used_most)? == Room::Made {
            // Cleaning may have moved some of them.
            self.next = first;
            moves = self.next_scattered().unwrap_or_default();
        }
        if let Err(errno) = writer.read_blocks(&moves, buffer) {
            // They stay at their addresses, and the pass goes on behind them.
            tracing::debug!("{}: cannot read blocks to put them in order: {errno}", self.log.name);
            return Ok(());
        }
        writer.append_in_order(&moves, buffer)
    }

    /// Returns the blocks written by maintenance, copies and maps, without those of guests
    /// meanwhile.
    fn own_blocks(&self) -> u64 {
        let totals = self.log.append_state().accounting().totals();
        totals.relocated_blocks + totals.map_blocks
    }

    fn charge(&mut self, bytes: u64) {
        self.budget.spend(bytes, self.log.clock.now());
        self.volume.resorting.add(bytes);
    }

    fn end_pass(&mut self) {
        self.next = 0;
        self.used_most = None;
        self.done_at = Some(self.log.append_state().accounting().clock());
    }

    /// Returns whether no guest has made a request since the last look, no other work is due, and
    /// the budget is not spent.
    fn may_go_on(&mut self) -> bool {
        let limit = self.volume.resorting.limit();
        let is_idle = mutated("log.resort.ignores-guests", self.look_at_guests().0 == 0, true);
        let is_paid = self.budget.left(limit, self.log.clock.now()) > 0;
        let is_paid = mutated("log.resort.ignores-its-budget", is_paid, true);
        is_idle && is_paid && !self.log.inbox.is_called()
    }

    /// Returns the next live blocks of the disk that are not in order, as many as are sorted
    /// together.
    fn next_scattered(&mut self) -> Option<Vec<Move>> {
        let together = self.sorted_together();
        let mut next = self.next;
        let found = loop {
            let moves = next_moves(&self.volume, &mut next, together);
            if moves.as_deref().is_none_or(is_scattered) {
                break moves;
            }
        };
        self.next = next;
        found
    }

    /// Half a segment, so that little room is needed, up to 8 MiB: a guest that becomes active
    /// waits for the device until these have been copied.
    fn sorted_together(&self) -> usize {
        (self.log.shape.segment_blocks / 2).min(BATCH_BLOCKS_MAX) as usize
    }
}

/// Makes room for the copies, such that neither guests nor the host run short, by freeing dead
/// segments, and by cleaning the emptiest.
fn make_room_to_sort(
    cleaner: &mut Cleaner,
    writer: &mut Writer,
    used_most: u32,
) -> Result<Room, Errno> {
    let has_room = |writer: &Writer| {
        let used = writer.log.append_state().segments().used();
        let left = writer.space.view().left_for_writes();
        left > SLACK_SEGMENTS + COPIES_SEGMENTS && used <= used_most
    };
    if has_room(writer) {
        return Ok(Room::Found);
    }
    free_sources(writer)?;
    for _ in 0..VICTIMS_TOGETHER {
        if has_room(writer) {
            return Ok(Room::Made);
        }
        let Some(victim) = emptiest(&writer.log, &[Kind::Guests, Kind::Copies]) else { break };
        cleaner.clean(writer, victim)?;
        if writer.space.view().dead >= DEAD_TOGETHER {
            free_sources(writer)?;
        }
    }
    free_sources(writer)?;
    // If that was not enough, the next blocks bring the next victims.
    let left = writer.space.view().left_for_writes();
    if left > COPIES_SEGMENTS { Ok(Room::Made) } else { Err(Errno::NOSPC) }
}

/// Frees segments that died by copying: replay does not find those copies, so a checkpoint is
/// needed.
fn free_sources(writer: &mut Writer) -> Outcome {
    let checkpoints = mutated("log.resort.frees-without-checkpoint", true, false);
    if !checkpoints {
        let closed = writer.log.append_state().segments_mut().take_pinned();
        for few in closed.chunks(LOOK_MOST) {
            writer.log.append_state().segments_mut().unpin(few);
        }
        return writer.release_freeable();
    }
    writer.checkpoint(CheckpointKind::Running)
}

/// Returns whether the runs of these blocks in the file are short.
fn is_scattered(moves: &[Move]) -> bool {
    let follows = |pair: &[Move]| pair[0].old.address().is_followed_by(pair[1].old.address());
    // A hole in the disk is a break too: a reader does not go on there.
    let breaks = moves.windows(2).filter(|pair| !follows(pair)).count();
    breaks * RUN_BLOCKS_MIN > moves.len()
}
