//! Cleaning: live blocks of a victim are copied elsewhere, so that the whole segment dies.

use flowstone_block::{Errno, Outcome};
use tracing::warn;

use super::output::Gather;
use super::{CheckpointKind, Keeper, Progress};
use crate::log::address::{Address, BLOCK_BYTES, Word};
use crate::log::policy::{CLASS_MAP, Candidate};
use crate::log::record::{Entry, Kind};
use crate::log::segments::{Segment, State};
use crate::log::window::Window;

/// Segments above the reserve at which cleaning begins.
const SLACK_SEGMENTS: u32 = 3;
/// A victim must give back at least this share of itself, or cleaning it is not worth the wear.
const GAIN_MIN: f64 = 0.03;
/// One checkpoint frees at least so many times the blocks that it writes, where space allows.
const FREED_PER_MAP: u64 = 16;

/// A copy on its way into the map.
struct Move {
    lba: u64,
    old: Word,
}

impl Keeper {
    /// Frees a segment if they are running out: cleans a victim, or makes the checkpoint that the
    /// dead wait for.
    pub fn make_room(&mut self) -> Progress {
        let (available, keep, dead) = {
            let tail = self.core.tail();
            let hidden = if self.host_full.is_some() { 0 } else { tail.segments.obtainable() };
            let keep = tail.kept_for_upkeep(&self.core.map);
            (tail.segments.ready() + hidden, keep, tail.segments.dead())
        };
        let batch = self.batch();
        if available >= keep + SLACK_SEGMENTS + batch / 2 {
            return Progress::Idle;
        }
        let urgent = available <= keep + 1;
        if dead > 0 && (urgent || dead >= batch) {
            return self.try_checkpoint();
        }
        let Some((victim, segment)) = self.choose_victim() else {
            if dead > 0 {
                return self.try_checkpoint();
            }
            if urgent {
                self.give_up_waiting(Errno::NOSPC);
            }
            return Progress::Idle;
        };
        match self.clean(victim, segment) {
            Ok(()) => Progress::Made,
            Err(errno) => {
                warn!("{}: cleaning stopped: {errno}", self.core.name);
                if dead > 0 {
                    return self.try_checkpoint();
                }
                self.give_up_waiting(errno);
                Progress::Idle
            }
        }
    }

    /// How many segments should be dead before a checkpoint is made for their sake.
    fn batch(&self) -> u32 {
        let map = self.leaves.len() as u64 * 4 + u64::from(self.root.blocks);
        let wanted = (map * FREED_PER_MAP).div_ceil(u64::from(self.core.shape.segment_blocks));
        let limit = u64::from(self.core.tail().segments.limit());
        let spare = limit * u64::from(self.core.shape.reserve_percent) / 100;
        wanted.clamp(2, (spare / 8).max(2)) as u32
    }

    /// The segment that pays most. While an output is being filled, only victims whose blocks
    /// belong in it, as long as there are any worth it: outputs are written in one go.
    fn choose_victim(&mut self) -> Option<(u32, Segment)> {
        let segment_blocks = self.core.shape.segment_blocks;
        let gain_min = (f64::from(segment_blocks) * GAIN_MIN) as u32;
        let tail = self.core.tail();
        let clock = tail.clock;
        let usable = |segment: &Segment| {
            segment.state == State::Sealed
                && !segment.damaged
                && segment.live + gain_min < segment_blocks
        };
        let scored = tail.segments.iter().filter(|(_, segment)| usable(segment)).map(|found| {
            let age = clock.saturating_sub(found.1.birth);
            let candidate = Candidate { live: found.1.live, blocks: segment_blocks, age };
            (self.policy.score(&candidate), found)
        });
        let mut best: Option<(f64, (u32, Segment))> = None;
        let mut best_filling: Option<(f64, (u32, Segment))> = None;
        for (score, found) in scored {
            if best.is_none_or(|(top, _)| score > top) {
                best = Some((score, found));
            }
            let goes_along = self.filling.is_some_and(|filling| {
                let mut lifetimes = self.lifetimes;
                let age = clock.saturating_sub(found.1.birth);
                lifetimes.class_for(found.1.class, age) == filling
            });
            if goes_along && best_filling.is_none_or(|(top, _)| score > top) {
                best_filling = Some((score, found));
            }
        }
        let (top, found) = best?;
        match best_filling {
            Some((score, along)) if score * 2.0 >= top => Some(along),
            _ => Some(found),
        }
    }

    /// Copies what lives in `victim` into the output of its lifetime class.
    fn clean(&mut self, victim: u32, segment: Segment) -> Outcome {
        if segment.class == CLASS_MAP {
            self.outdate_map_segment(victim);
            // The checkpoint that follows writes its leaves anew.
            return self.checkpoint(CheckpointKind::Running);
        }
        let age = self.core.tail().clock.saturating_sub(segment.birth);
        let class = self.lifetimes.class_for(segment.class, age);
        self.filling = Some(class);
        let mut window = Window::default();
        let mut gather = Gather::new(self.core.shape.record_payload_max());
        let mut moves: Vec<Move> = Vec::new();
        let mut entries = Vec::new();
        let mut block = 0;
        let mut unreadable = 0u32;
        while block < self.core.shape.segment_blocks {
            if self.core.tail().segments.get(victim).live == 0
                || !self.show(&mut window, victim, block, 1)?
            {
                break;
            }
            let header = self.core.codec.decode(window.block(block), &mut entries);
            let header = header.filter(|it| it.serial == segment.serial && it.position == block);
            let Some(header) = header else { break };
            let mut at = block + 1;
            for entry in &entries {
                if let Entry::Data { lba, .. } | Entry::Moved { lba, .. } = *entry {
                    let address = self.core.shape.address(victim, at);
                    let word = self.core.map.get(lba);
                    if word.address() == address {
                        if !self.show(&mut window, victim, at, 1)?
                            || crc32c::crc32c(window.block(at)) != word.checksum()
                        {
                            self.core.report_damage(
                                lba,
                                word,
                                "found while cleaning: its checksum does not fit",
                            );
                            unreadable += 1;
                        } else {
                            if !gather.has_room_for(1) {
                                self.append_moves(class, segment, &mut gather, &mut moves)?;
                            }
                            let entry =
                                Entry::Moved { lba, from: address, checksum: word.checksum() };
                            gather.push(entry).copy_from_slice(window.block(at));
                            moves.push(Move { lba, old: word });
                        }
                    }
                }
                at += entry.payload_blocks();
            }
            block += header.record_blocks();
        }
        self.append_moves(class, segment, &mut gather, &mut moves)?;
        let mut tail = self.core.tail();
        if tail.segments.get(victim).live > 0 {
            // What is left cannot be copied; it stays, and so does the segment.
            tail.segments.mark_damaged(victim);
            drop(tail);
            warn!(
                "{}: segment {victim} keeps blocks that cannot be copied ({unreadable} unreadable)",
                self.core.name
            );
        }
        Ok(())
    }

    fn show(
        &mut self,
        window: &mut Window,
        segment: u32,
        first: u32,
        count: u32,
    ) -> Result<bool, Errno> {
        let file_blocks = u64::from(self.core.shape.address(segment, 0).get())
            + u64::from(self.core.shape.segment_blocks);
        window.show(&mut self.file, self.core.shape, file_blocks, segment, first, count)
    }

    /// Writes the gathered copies and puts them into the map, where it has not changed meanwhile.
    fn append_moves(
        &mut self,
        class: u8,
        source: Segment,
        gather: &mut Gather,
        moves: &mut Vec<Move>,
    ) -> Outcome {
        if moves.is_empty() {
            return Ok(());
        }
        let header = self.append(class, Kind::Relocated, source.serial, gather)?;
        self.apply_moves(class, header, gather, moves, source.birth);
        Ok(())
    }

    fn apply_moves(
        &mut self,
        class: u8,
        header: Address,
        gather: &mut Gather,
        moves: &mut Vec<Move>,
        birth: u64,
    ) {
        let target = self.core.shape.segment_of(header);
        let mut tail = self.core.tail();
        tail.changed = true;
        tail.segments.gain(target, gather.payload);
        let mut address = header;
        for (moved, entry) in moves.drain(..).zip(&gather.entries) {
            address = address.forward(1);
            let Entry::Moved { checksum, .. } = *entry else { continue };
            let new = Word::new(address, checksum);
            let dies = if self.core.map.replace_if(moved.lba, moved.old, new) {
                moved.old.address()
            } else {
                // The guest has written the block meanwhile: the copy is dead on arrival.
                address
            };
            tail.segments.lose(dies);
        }
        if let Some(output) = &mut self.outputs[usize::from(class)] {
            output.births += u128::from(birth) * u128::from(gather.payload);
            output.copies += u64::from(gather.payload);
        }
        debug_assert_eq!(gather.entries.len() * BLOCK_BYTES, gather.payload as usize * BLOCK_BYTES);
        gather.clear();
    }

    /// Marks the leaves that are in a map segment, so that the next checkpoint writes them
    /// elsewhere; the root moves with every checkpoint.
    fn outdate_map_segment(&mut self, victim: u32) {
        for (leaf, (address, _)) in &self.leaves {
            if self.core.shape.segment_of(*address) == victim {
                self.core.map.touch(*leaf);
            }
        }
    }
}
