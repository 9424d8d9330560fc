//! Cleaning: live blocks of a victim are copied elsewhere, so that the whole segment dies.

use flowstone_block::{Errno, Outcome, mutant};
use tracing::warn;

use super::record_builder::RecordBuilder;
use super::{CheckpointKind, Maintenance, Progress};
use crate::log::address::{Address, BLOCK_BYTES, MapEntry};
use crate::log::append::Health;
use crate::log::ids::SegmentId;
use crate::log::policy::{Candidate, LIFETIME_CLEANED, LIFETIME_MAP};
use crate::log::record::{Entry, Kind};
use crate::log::reserve::{Step, View};
use crate::log::segments::{Segment, State};
use crate::log::window::Window;

/// Checkpoints that may be needed until the map takes a segment less.
const MAP_ATTEMPTS: u32 = 3;
/// Segments of which no more than one part in so many lives are cleaned while guests are quiet.
const SPARSE_PART: u32 = 3;
/// So many are cleaned before the next look at everything else.
const SPARSE_TOGETHER: u32 = 8;
/// Guests that write so many records in [`RELEASE_TIME`] at most are quiet: there is always a log
/// file or a journal that is written now and then.
const QUIET_RECORDS: u64 = 32;

/// A copy on its way into the map.
#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub lba: u64,
    pub old: MapEntry,
}

impl Maintenance {
    /// Frees a segment if they are running out: cleans a victim, or makes durable what the dead
    /// wait for.
    pub fn make_room(&mut self) -> Progress {
        let view = self.view();
        let done = match view.next_step() {
            Step::Nothing => return Progress::Idle,
            Step::SyncAndFree => self.release_freeable(),
            Step::Checkpoint => return self.try_checkpoint(),
            Step::CleanMap => self.clean_map().or_else(|_| self.clean_any()),
            Step::Clean => self.clean_any(),
        };
        match done {
            Ok(()) => Progress::Made,
            Err(_) if self.view().dead > 0 => self.try_checkpoint(),
            Err(errno) => {
                if view.is_urgent() {
                    self.give_up_waiting(errno);
                }
                Progress::Idle
            }
        }
    }

    fn view(&self) -> View {
        let state = self.core.append_state();
        let (dead, freeable) = state.segments.dead();
        View {
            reserve: state.reserve(&self.core.map, true),
            available: self.available(&state),
            trim_heads: state.trim_heads(),
            dead,
            freeable,
            map_segments: state.segments.used_for_maps(),
        }
    }

    fn clean_any(&mut self) -> Outcome {
        let found = self.choose_victim();
        let done = match found {
            Some((victim, segment)) => self.clean(victim, segment),
            None if self.view().is_urgent() => self.clean_stream(),
            None => Err(Errno::NOSPC),
        };
        match done {
            // The room that copies need is what the map has beyond its share, if anything is.
            Err(Errno::NOSPC) => self.clean_map(),
            done => done,
        }
    }

    /// What the open outputs lack may be all there is to win: one of them ends and goes into
    /// another.
    fn clean_stream(&mut self) -> Outcome {
        let lifetime = self.merge_streams(LIFETIME_CLEANED);
        let (victim, segment) = self.choose_victim().ok_or(Errno::NOSPC)?;
        self.clean_into(lifetime, victim, segment)
    }

    /// Makes the map smaller. `NOSPC` if that is not to be had.
    fn clean_map(&mut self) -> Outcome {
        let used = |maintenance: &Self| maintenance.core.append_state().segments.used_for_maps();
        let before = used(self);
        // The first attempt may end the open segment and leave it sparse, which the next one makes
        // up for. Where a root takes most of a segment no attempt wins anything.
        for _ in 0..MAP_ATTEMPTS {
            let victims = self.outdate_sparse_map();
            if victims.is_empty() {
                break;
            }
            self.checkpoint_without(&victims)?;
            self.release_freeable()?;
            if used(self) < before {
                return Ok(());
            }
        }
        Err(Errno::NOSPC)
    }

    /// Marks the live leaves of sparse map segments, so that the next checkpoint writes them
    /// elsewhere; all at once, since each checkpoint writes a root besides, which in a segment of
    /// its own would win nothing. Returns the segments.
    pub fn outdate_sparse_map(&mut self) -> Vec<SegmentId> {
        let (sparse, most) = {
            let state = self.core.append_state();
            let most = state.reserve(&self.core.map, true).leaves;
            let of_map = |it: &Segment| it.lifetime == LIFETIME_MAP && self.is_worth_cleaning(it);
            let sparse = state.segments.iter().filter(|(_, it)| of_map(it));
            let mut sparse: Vec<(u32, SegmentId)> = sparse.map(|(n, it)| (it.live, n)).collect();
            sparse.sort_unstable();
            (sparse, most)
        };
        let mut chosen = Vec::new();
        for (_, victim) in sparse {
            self.outdate_map_segment(victim);
            chosen.push(victim);
            if u64::from(self.core.map.changed_count()) >= most {
                break;
            }
        }
        chosen
    }

    /// The leaves of these segments count as changed: the checkpoint writes them elsewhere.
    fn checkpoint_without(&mut self, victims: &[SegmentId]) -> Outcome {
        self.checkpoint(CheckpointKind::Running)?;
        let mut state = self.core.append_state();
        for victim in victims {
            if state.segments.get(*victim).live > 0 {
                // The image was tampered with: the victim must not be tried again for ever.
                state.segments.mark_damaged(*victim);
            }
        }
        Ok(())
    }

    /// Cleans sparse segments, as long as guests are quiet. What guests discard lies scattered
    /// between what stays; cleaning gives that space back to the host even if no write needs it.
    /// Copying one block frees two: low write amplification. Only a few segments at a time: the
    /// victims are free after the next checkpoint, and work that comes meanwhile must not wait for
    /// all of them.
    pub fn clean_sparse(&mut self) {
        for cleaned in 0..SPARSE_TOGETHER {
            if !self.is_quiet() || self.core.inbox.is_stopping() {
                return;
            }
            let Some((victim, segment)) = self.sparsest() else { return };
            if self.clean(victim, segment).is_err() {
                if cleaned == 0 {
                    self.sparse_tried = Some(self.core.append_state().committed());
                }
                return;
            }
        }
    }

    /// Whether guests write next to nothing, and no request waits for the maintenance worker.
    fn is_quiet(&self) -> bool {
        let state = self.core.append_state();
        let waits = state.wants_room() || state.health != Health::Running;
        !waits && state.committed().since(self.seen) <= QUIET_RECORDS
    }

    /// The segment with the fewest live blocks, if they are few enough, unless cleaning it has
    /// failed.
    pub fn sparsest(&self) -> Option<(SegmentId, Segment)> {
        let most = self.core.shape.data_blocks_packed() / SPARSE_PART;
        let state = self.core.append_state();
        if self.sparse_tried == Some(state.committed()) {
            return None;
        }
        let is_sparse = |segment: &Segment| {
            segment.state == State::Sealed
                && !segment.damaged
                && segment.lifetime != LIFETIME_MAP
                && (1..=most).contains(&segment.live)
        };
        let sparse = state.segments.iter().filter(|(_, segment)| is_sparse(segment));
        sparse.min_by_key(|(_, segment)| segment.live)
    }

    /// The victim with the best score. While a stream is being filled, only victims whose blocks
    /// belong in it, as long as one of them is worth it: a stream is written without a break.
    pub fn choose_victim(&mut self) -> Option<(SegmentId, Segment)> {
        let packed = self.core.shape.data_blocks_packed();
        let state = self.core.append_state();
        let clock = state.clock;
        let usable = state.segments.iter().filter(|(_, segment)| self.is_worth_cleaning(segment));
        let scored = usable.map(|found| {
            let age = clock.saturating_sub(found.1.birth);
            let candidate = Candidate { live: found.1.live, blocks: packed, age };
            (self.policy.score(&candidate), found)
        });
        let mut best: Option<(f64, (SegmentId, Segment))> = None;
        let mut best_filling: Option<(f64, (SegmentId, Segment))> = None;
        for (score, found) in scored {
            if best.is_none_or(|(top, _)| score > top) {
                best = Some((score, found));
            }
            let goes_along = self.filling.is_some_and(|filling| {
                let mut lifetimes = self.lifetimes;
                let age = clock.saturating_sub(found.1.birth);
                lifetimes.lifetime_for(found.1.lifetime, age) == filling
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

    /// Whether cleaning frees enough; the space of headers does not count, since copies have
    /// headers too.
    fn is_worth_cleaning(&self, segment: &Segment) -> bool {
        let shape = self.core.shape;
        segment.state == State::Sealed
            && !segment.damaged
            && segment.live + shape.cleaning_gain_min() < shape.data_blocks_packed()
    }

    /// Copies the live blocks of `victim` into the stream of their lifetime.
    pub fn clean(&mut self, victim: SegmentId, segment: Segment) -> Outcome {
        if segment.lifetime == LIFETIME_MAP {
            self.outdate_map_segment(victim);
            return self.checkpoint_without(&[victim]);
        }
        let age = self.core.append_state().clock.saturating_sub(segment.birth);
        let mut lifetime = self.lifetimes.lifetime_for(segment.lifetime, age);
        if self.view().is_tight() {
            lifetime = self.merge_streams(lifetime);
        }
        self.clean_into(lifetime, victim, segment)
    }

    fn clean_into(&mut self, lifetime: u8, victim: SegmentId, segment: Segment) -> Outcome {
        self.filling = Some(lifetime);
        let mut window = Window::default();
        let mut builder = RecordBuilder::new(self.core.shape.record_payload_max());
        let mut moves: Vec<Move> = Vec::new();
        let mut entries = Vec::new();
        let mut block = 0;
        let mut unreadable = 0u32;
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
                    let address = self.core.shape.address(victim, at);
                    let map_entry = self.core.map.get(lba);
                    if map_entry.address() == address {
                        if !self.show(&mut window, victim, at, 1)?
                            || crc32c::crc32c(window.block(at)) != map_entry.checksum()
                                && !mutant("log.clean.data-unchecked")
                        {
                            self.core.report_damage(
                                lba,
                                map_entry,
                                "the checksum of a block does not fit (found while cleaning)",
                            );
                            unreadable += 1;
                        } else {
                            if !builder.has_room_for(1) {
                                self.append_moves(
                                    lifetime,
                                    victim,
                                    segment,
                                    &mut builder,
                                    &mut moves,
                                )?;
                            }
                            let entry =
                                Entry::Moved { lba, from: address, checksum: map_entry.checksum() };
                            builder.push(entry).copy_from_slice(window.block(at));
                            moves.push(Move { lba, old: map_entry });
                        }
                    }
                }
                at += entry.payload_blocks();
            }
            block += header.record_blocks();
        }
        self.append_moves(lifetime, victim, segment, &mut builder, &mut moves)?;
        let mut state = self.core.append_state();
        if state.segments.get(victim).live > 0 {
            // What is left cannot be copied; it stays, and so does the segment.
            state.segments.mark_damaged(victim);
            drop(state);
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
    fn append_moves(
        &mut self,
        lifetime: u8,
        victim: SegmentId,
        source: Segment,
        builder: &mut RecordBuilder,
        moves: &mut Vec<Move>,
    ) -> Outcome {
        if moves.is_empty() {
            return Ok(());
        }
        let replayable =
            self.streams[usize::from(lifetime)].is_some_and(|stream| stream.replayable);
        let link = if replayable { source.incarnation.bits() } else { 0 };
        let header = self.append(lifetime, Kind::Relocated, link, builder)?;
        self.apply_moves(lifetime, header, builder, moves, source.birth);
        if !replayable {
            // Replay would not find the copies.
            self.core.append_state().segments.pin(victim);
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
        state.segments.gain(target, builder.payload);
        let mut address = header;
        for (moved, entry) in moves.drain(..).zip(&builder.entries) {
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
            stream.births += u128::from(birth) * u128::from(builder.payload);
            stream.copies += u64::from(builder.payload);
        }
        debug_assert_eq!(
            builder.entries.len() * BLOCK_BYTES,
            builder.payload as usize * BLOCK_BYTES
        );
        builder.clear();
    }

    /// Marks the leaves that are in a map segment, so that the next checkpoint writes them
    /// elsewhere; the root moves with every checkpoint.
    fn outdate_map_segment(&mut self, victim: SegmentId) {
        for (leaf, (address, _)) in &self.leaves {
            if self.core.shape.segment_of(*address) == victim {
                self.core.map.touch(*leaf);
            }
        }
    }
}
