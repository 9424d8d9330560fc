//! Heads of streams, and the headers and seals that are appended there: the same for streams of
//! guests, of copies and of maps.

use super::address::Address;
use super::ids::{Incarnation, SegmentId, Sequence};
use super::record::{Entry, Header, Kind};
use super::shape::Shape;

/// The place where a stream goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadPlace {
    /// Incarnation of the segment; 0 if the stream has no head.
    pub incarnation: Incarnation,
    /// Number of the segment.
    pub segment: SegmentId,
    /// Block within the segment.
    pub block: u32,
}

/// Fields of a header that describe the moment when its record got its place.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    /// Position of the record.
    pub sequence: Sequence,
    /// All records before this are durable (guests' records), or have committed (copies).
    pub durable: Sequence,
    /// Number of the newest durable checkpoint.
    pub generation: u64,
}

/// A record with its place. The seal of a segment is one.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// Header of the record.
    pub header: Header,
    /// Address of the header block.
    pub address: Address,
}

impl HeadPlace {
    /// A head at the start of a segment.
    pub const fn start_of(segment: SegmentId, incarnation: Incarnation) -> Self {
        Self { incarnation, segment, block: 0 }
    }

    /// Returns the blocks left for records; the last one is for the seal.
    pub const fn room(&self, shape: Shape) -> u32 {
        shape.segment_blocks - 1 - self.block
    }

    /// Places a record here and advances the head behind it.
    pub const fn append(
        &mut self,
        shape: Shape,
        stamp: Stamp,
        kind: Kind,
        payload_blocks: u32,
        link: u64,
    ) -> Placed {
        let Stamp { sequence, durable, generation } = stamp;
        let Self { incarnation, segment, block: position } = *self;
        let header = Header {
            incarnation,
            sequence,
            durable,
            generation,
            position,
            kind,
            payload_blocks,
            link,
        };
        self.block += header.record_blocks();
        Placed { header, address: shape.address(segment, position) }
    }

    /// Ends the segment, and goes on at the start of `next`. Returns the seal, which must be
    /// written with [`entry_of_seal`](Self::entry_of_seal).
    pub fn go_on_at(&mut self, next: Self, shape: Shape, stamp: Stamp) -> Placed {
        let seal = self.append(shape, stamp, Kind::Seal, 0, next.segment.get().into());
        *self = next;
        seal
    }

    /// Returns the entry of the seal that leads to this segment.
    pub const fn entry_of_seal(&self) -> Entry {
        Entry::Next { incarnation: self.incarnation }
    }
}
