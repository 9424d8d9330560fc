//! Running counts of segments by kind: queues read them under the log's lock, and an image of 1 TiB
//! has 32,768 segments.

use super::segment::{Segment, State};
use flowstone_log_format::LIFETIME_MAP;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Segments in use, heads included.
    pub used: u32,
    /// Segments in use that hold parts of the map.
    pub maps: u32,
    /// Segments that blocks of guests are being appended to.
    pub open_for_data: u32,
    /// Segments that nothing is appended to.
    pub closed: u32,
    /// Of those: the ones with live blocks of the disk.
    pub closed_of_data: u32,
    /// Live blocks of the closed segments.
    pub closed_live: u64,
}

impl Tally {
    /// Returns the counts of one segment.
    fn of(segment: &Segment) -> Self {
        let of_map = segment.lifetime == LIFETIME_MAP;
        let closed = segment.is_closed();
        let open = segment.state == State::Open;
        Self {
            used: u32::from(open || closed),
            maps: u32::from(of_map && (open || segment.state == State::Sealed)),
            open_for_data: u32::from(open && !of_map),
            closed: u32::from(closed),
            closed_of_data: u32::from(segment.state == State::Sealed && !of_map),
            closed_live: if closed { u64::from(segment.live) } else { 0 },
        }
    }

    /// Updates the counts for a changed segment.
    pub fn change(&mut self, from: &Segment, to: &Segment) {
        let (from, to) = (Self::of(from), Self::of(to));
        self.used = self.used + to.used - from.used;
        self.maps = self.maps + to.maps - from.maps;
        self.open_for_data = self.open_for_data + to.open_for_data - from.open_for_data;
        self.closed = self.closed + to.closed - from.closed;
        self.closed_of_data = self.closed_of_data + to.closed_of_data - from.closed_of_data;
        self.closed_live = self.closed_live + to.closed_live - from.closed_live;
    }

    /// Counts all segments.
    pub fn counted<'a>(segments: impl Iterator<Item = &'a Segment>) -> Self {
        let mut tally = Self::default();
        segments.for_each(|segment| tally.change(&Segment::default(), segment));
        tally
    }
}
