//! Copying the live blocks of a victim, in the order of their LBAs.

use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, Outcome, mutant};
use tracing::warn;

use super::Maintenance;
use crate::log::address::{Address, BLOCK_BYTES, MapEntry};
use crate::log::core::Core;
use crate::log::ids::SegmentId;
use crate::log::record::{Entry, Kind};
use crate::log::record_builder::RecordBuilder;
use crate::log::segments::Segment;
use crate::log::window::Window;

/// How long cleaning waits for guests at once, and how often before the next record.
const AHEAD_WAIT: Duration = Duration::from_millis(1);
const AHEAD_WAITS: u32 = 20;

/// Blocks that are read before guests are told.
const EARN_BLOCKS: u32 = 32;

/// A copy on its way into the map.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub lba: u64,
    pub old: MapEntry,
}

/// Copies of what is live in one segment.
struct Copies {
    victim: SegmentId,
    segment: Segment,
    /// Of the stream that they go to.
    lifetime: u8,
    /// The next record of that stream, and how many blocks it may have.
    builder: RecordBuilder,
    most: u32,
    moves: Vec<Move>,
    /// Blocks that have been read since guests were told.
    staged: u32,
    /// Blocks that cannot be copied.
    unreadable: u32,
}

/// Guests may write more: so many live blocks of a victim have been read, or written elsewhere. Each is
/// half of the work.
fn earn(core: &Core, victim: &Segment, blocks: u32) {
    let gain = core.shape.data_blocks_most().saturating_sub(victim.live);
    let won = u64::from(blocks) * u64::from(gain);
    let go_on = core.append_state().rate.won(won, 2 * u64::from(victim.live));
    if go_on && !mutant("log.rate.tells-nobody") {
        core.announce_room();
    }
}

impl Maintenance {
    /// Copies the live blocks of `victim` into the stream of a lifetime, at a pace that writes share.
    pub fn clean_into(&mut self, lifetime: u8, victim: SegmentId, segment: Segment) -> Outcome {
        let start = Instant::now();
        self.waited = Duration::ZERO;
        self.core.append_state().rate.begin();
        let outcome = self.copy(lifetime, victim, segment);
        let held = {
            let mut state = self.core.append_state();
            state.costs.cleaned_segments += u64::from(outcome.is_ok());
            state.costs.cleaning_time += start.elapsed().saturating_sub(self.waited);
            state.rate.end()
        };
        if held && !mutant("log.rate.leaves-writes-behind") {
            self.core.announce_room();
        }
        outcome
    }

    fn copy(&mut self, lifetime: u8, victim: SegmentId, segment: Segment) -> Outcome {
        self.filling = Some(lifetime);
        let builder = RecordBuilder::new(self.core.shape.record_payload_max());
        let moves = Vec::new();
        let mut copies =
            Copies { victim, segment, lifetime, builder, most: 0, moves, staged: 0, unreadable: 0 };
        self.stage.clear();
        let mut window = Window::beside_guests();
        let mut entries = Vec::new();
        let mut block = 0;
        while block < self.core.shape.segment_blocks {
            if self.core.append_state().segments.get(victim).live == 0
                || !self.show(&mut window, victim, block, 1)?
            {
                break;
            }
            let header = self.core.codec.decode(window.block(block), &mut entries);
            let header =
                header.filter(|it| it.incarnation == segment.incarnation && it.position == block);
            let Some(header) = header else { break };
            let mut at = block + 1;
            for entry in &entries {
                if let Entry::Data { lba, .. } | Entry::Moved { lba, .. } = *entry {
                    self.stage_if_live(&mut copies, &mut window, lba, at)?;
                }
                at += entry.payload_blocks();
            }
            block += header.record_blocks();
        }
        self.copy_staged(&mut copies)?;
        self.append_moves(&mut copies)?;
        self.leave_the_rest(&copies);
        Ok(())
    }

    /// Takes the block at this place of the victim along, if the map still says that it is there.
    fn stage_if_live(
        &mut self,
        copies: &mut Copies,
        window: &mut Window,
        lba: u64,
        at: u32,
    ) -> Outcome {
        let address = self.core.shape.address(copies.victim, at);
        let map_entry = self.core.map.get(lba);
        if map_entry.address() != address {
            return Ok(());
        }
        let checksum = map_entry.checksum();
        if !self.show(window, copies.victim, at, 1)?
            || crc32c::crc32c(window.block(at)) != checksum && !mutant("log.clean.data-unchecked")
        {
            let what = "the checksum of a block does not fit (found while cleaning)";
            self.core.report_damage(lba, map_entry, what);
            copies.unreadable += 1;
            return Ok(());
        }
        let has_room = self.stage.push(Move { lba, old: map_entry }, window.block(at));
        copies.staged += 1;
        if copies.staged == EARN_BLOCKS {
            earn(&self.core, &copies.segment, std::mem::take(&mut copies.staged));
        }
        if has_room { Ok(()) } else { self.copy_staged(copies) }
    }

    /// Makes records of what has been taken along. The last one is written when it is full, or with the
    /// last block of the victim.
    fn copy_staged(&mut self, copies: &mut Copies) -> Outcome {
        let mut stage = std::mem::take(&mut self.stage);
        for (moved, content) in stage.in_order() {
            if copies.builder.payload() == 0 {
                copies.most = self.copies_that_fit(copies.lifetime);
            }
            let from = moved.old.address();
            let entry = Entry::Moved { lba: moved.lba, from, checksum: moved.old.checksum() };
            copies.builder.push(entry).copy_from_slice(content);
            copies.moves.push(moved);
            if copies.builder.payload() >= copies.most {
                self.append_moves(copies)?;
            }
        }
        stage.clear();
        self.stage = stage;
        Ok(())
    }

    /// Cleaning that is ahead of guests waits while they write: it goes on as they pay for it.
    fn let_guests_go_first(&mut self) {
        for _ in 0..AHEAD_WAITS {
            let (is_ahead, clock) = {
                let state = self.core.append_state();
                (state.rate.is_ahead(), state.clock)
            };
            let writes = std::mem::replace(&mut self.guest_clock, clock) != clock;
            if !is_ahead || !writes || self.core.inbox.is_stopping() {
                return;
            }
            let start = Instant::now();
            thread::sleep(AHEAD_WAIT);
            self.waited += start.elapsed();
        }
    }

    /// What cannot be copied stays, and so does its segment.
    fn leave_the_rest(&self, copies: &Copies) {
        let Copies { victim, unreadable, .. } = *copies;
        let mut state = self.core.append_state();
        if state.segments.get(victim).live > 0 {
            state.segments.mark_damaged(victim);
            drop(state);
            warn!(
                "{}: segment {victim} keeps blocks that cannot be copied ({unreadable} unreadable)",
                self.core.name
            );
        }
    }

    fn show(
        &mut self,
        window: &mut Window,
        segment: SegmentId,
        first: u32,
        count: u32,
    ) -> Result<bool, Errno> {
        let file_blocks = u64::from(self.core.shape.address(segment, 0).get())
            + u64::from(self.core.shape.segment_blocks);
        let shown =
            window.show(&mut self.file, self.core.shape, file_blocks, segment, first, count);
        // What cannot be read stays where it is, and nothing else must wait for it.
        Ok(shown.unwrap_or(false))
    }

    /// Writes the copies and puts them into the map where it has not changed meanwhile.
    fn append_moves(&mut self, copies: &mut Copies) -> Outcome {
        let Copies { victim, segment, lifetime, builder, moves, .. } = copies;
        let lifetime = *lifetime;
        if moves.is_empty() {
            return Ok(());
        }
        let replayable =
            self.streams[usize::from(lifetime)].is_some_and(|stream| stream.replayable);
        let link = if replayable { segment.incarnation.bits() } else { 0 };
        let copied = builder.payload();
        self.let_guests_go_first();
        let header = self.append(lifetime, Kind::Relocated, link, builder)?;
        self.apply_moves(lifetime, header, builder, moves, segment.birth);
        self.core.append_state().costs.copied_blocks += u64::from(copied);
        earn(&self.core, segment, copied);
        if !replayable && !mutant("log.clean.does-not-pin-victims") {
            // Replay would not find the copies.
            self.core.append_state().segments.pin(*victim);
        }
        if self.is_stream_full(lifetime) {
            self.filling = None;
        }
        Ok(())
    }

    pub fn apply_moves(
        &mut self,
        lifetime: u8,
        header: Address,
        builder: &mut RecordBuilder,
        moves: &mut Vec<Move>,
        birth: u64,
    ) {
        let target = self.core.shape.segment_of(header);
        let mut state = self.core.append_state();
        state.changed = true;
        state.segments.gain(target, builder.payload());
        let mut address = header;
        for (moved, entry) in moves.drain(..).zip(builder.entries()) {
            address = address.forward(1);
            let Entry::Moved { checksum, .. } = *entry else { continue };
            let new = MapEntry::new(address, checksum);
            let stale = mutant("log.clean.overwrites-newer-data") && {
                let map_entry = self.core.map.get(moved.lba);
                map_entry.is_mapped() && self.core.map.replace_if(moved.lba, map_entry, new)
            };
            let dies = if stale || self.core.map.replace_if(moved.lba, moved.old, new) {
                moved.old.address()
            } else {
                // The guest has written the block meanwhile: the copy is dead.
                address
            };
            state.segments.lose(dies);
        }
        if let Some(stream) = &mut self.streams[usize::from(lifetime)] {
            stream.births += u128::from(birth) * u128::from(builder.payload());
            stream.copies += u64::from(builder.payload());
        }
        debug_assert_eq!(
            builder.entries().len() * BLOCK_BYTES,
            builder.payload() as usize * BLOCK_BYTES
        );
        builder.clear();
    }
}
