//! The heads: where the streams of guests are appended to.

use flowstone_block::mutated;
use flowstone_log_format::{HeadPlace, STREAMS_MAX, SegmentId};
use flowstone_log_store::segments::State;

use super::AppendState;
use crate::log::reserve::Opener;
use crate::volume::Volume;

/// The place where a stream is appended to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    pub place: HeadPlace,
    /// Whether the host has allocated space for the segment.
    pub has_space: bool,
    /// Opened when writes had to leave the segment alone: only trims are appended until there is
    /// room, so it holds no live block, and the first checkpoint after its end frees it.
    pub for_trims: bool,
}

impl AppendState {
    /// After a failure: ends the heads that are not `fresh`, and those of streams that the image is
    /// to lose.
    pub fn end_heads(&mut self, fresh: [bool; STREAMS_MAX]) {
        self.forget();
        for stream in (0..STREAMS_MAX).filter(|stream| !fresh[*stream]) {
            self.heads[stream].for_trims = false;
            let HeadPlace { segment, incarnation, .. } = self.heads[stream].place;
            // After a crash they are sealed already; a new stream has no head yet.
            let is_open = self.segments.get(segment).state == State::Open;
            let is_open = mutated("log.streams.leaves-a-head-open", is_open, false);
            if !incarnation.is_none() && is_open {
                self.seal(segment);
            }
        }
        self.heads[self.shape.streams as usize..].fill(Head::default());
    }

    /// Sets the head of a stream.
    pub fn set_head(&mut self, stream: u8, head: Head) {
        self.heads[usize::from(stream)] = head;
    }

    /// Returns the number of heads that only trims use.
    pub fn trim_heads(&self) -> u32 {
        self.heads.iter().filter(|head| head.for_trims).count() as u32
    }

    /// At open: a head without live blocks counts as one opened for trims, if segments are short.
    pub fn find_trim_heads(&mut self, volume: &Volume) {
        let reserve = self.reserve(volume, true);
        for stream in 0..self.shape.streams as usize {
            let available = self.segments.ready_or_obtainable();
            let short = !reserve.may_open(Opener::Write, available, self.trim_heads());
            let head = &mut self.heads[stream];
            let is_there = !head.place.incarnation.is_none();
            head.for_trims = short && is_there && self.segments.get(head.place.segment).live == 0;
        }
    }

    /// Returns the segment of a head that lacks space of the host, if a request waits for room.
    pub fn head_without_space(&self) -> Option<SegmentId> {
        let heads = &self.heads[..self.shape.streams as usize];
        let head = heads.iter().find(|head| !head.has_space)?;
        self.wants_room().then_some(head.place.segment)
    }

    /// Notes that the host has allocated the space of a head's segment.
    pub fn give_head_space(&mut self, segment: SegmentId) {
        for head in &mut self.heads {
            head.has_space |= head.place.segment == segment;
        }
    }

    /// Returns the heads as they were when exactly the records before `committed` had been placed.
    pub fn committed_heads(&self) -> [HeadPlace; STREAMS_MAX] {
        let mut heads = self.heads.map(|head| head.place);
        // Backwards, so that the earliest record of each stream is applied last.
        for record in self.order.in_flight().rev() {
            let segment = self.shape.segment_of(record.address);
            let block = record.address.get() % self.shape.segment_blocks;
            let incarnation = self.segments.get(segment).incarnation;
            let stream = usize::from(self.segments.get(segment).lifetime);
            heads[stream] = HeadPlace { incarnation, segment, block };
        }
        heads
    }
}
