//! Room for records: whether the next segment may be opened, and what requests have found that wait
//! for room.

use std::time::{Duration, Instant};

use flowstone_block::{Clock, Errno, mutated};

use super::AppendState;
use crate::log::reserve::{Demand, Opener, Reserve};
use crate::volume::Volume;

/// Whether requests wait for room, or have been refused it. Writes and trims have one each, since
/// trims have room when writes have none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Want {
    /// A request waits.
    pub(super) starved: bool,
    /// Set when waiting was in vain, with the error.
    pub(super) full: Option<Full>,
}

/// Error and time of the last failed attempt to get room.
#[derive(Clone, Copy, Debug)]
pub struct Full {
    pub errno: Errno,
    pub at: Instant,
}

impl Full {
    /// Returns whether the attempt was recent. A later request waits until the host has been tried
    /// again: there may be room by then, and nothing else would find that out.
    pub fn is_fresh(self, clock: &Clock) -> bool {
        mutated("log.full.believed-for-ever", clock.since(self.at) < FULL_RETRY, true)
    }
}

/// Time during which a full host is not tried again.
pub const FULL_RETRY: Duration = Duration::from_millis(100);

impl AppendState {
    /// Returns the present reserves. `replaces` says whether a segment that is about to be opened
    /// for data takes the place of one that is full.
    pub fn reserve(&self, volume: &Volume, replaces: bool) -> Reserve {
        let in_flight: usize = self.order.in_flight().map(|it| it.entries.len()).sum();
        Reserve::of(&Demand {
            shape: self.shape,
            changed_leaves: volume.map.changed_count().into(),
            leaves: volume.map.leaf_count().into(),
            disk_leaves: volume.leaves(),
            open_for_data: self.segments.open_for_data() + u32::from(!replaces),
            in_flight: in_flight as u64,
            used: self.segments.used(),
            map_segments: self.segments.used_for_maps(),
        })
    }

    /// Returns the number of segments that guest writes must leave.
    pub fn kept_from_writes(&self, volume: &Volume) -> u32 {
        let reserve = self.reserve(volume, true).left_by(Opener::Write);
        reserve.saturating_sub(self.trim_heads())
    }

    /// Returns whether a head may be opened for `opener`, in place of another one.
    pub fn may_open_head(&self, opener: Opener, volume: &Volume) -> bool {
        self.reserve(volume, true).may_open(opener, self.segments.ready(), self.trim_heads())
    }

    /// Returns whether a request waits for room, or has been refused it.
    pub fn wants_room(&self) -> bool {
        [self.writes, self.trims].iter().any(|want| want.starved || want.full.is_some())
    }

    /// Returns whether requests are refused because the host is full.
    pub const fn is_full(&self) -> bool {
        self.writes.full.is_some() || self.restart_full.is_some()
    }

    /// Notes that there is room again. Returns whether requests had been refused it.
    pub fn note_room(&mut self) -> bool {
        let wants = [&mut self.writes, &mut self.trims].map(std::mem::take);
        wants.iter().any(|want| want.full.is_some())
    }

    /// Refuses the requests that wait for room; calls `first` for kinds of which none had been
    /// refused. Returns whether there are any.
    pub fn refuse_waiting(&mut self, full: Full, mut first: impl FnMut(&str)) -> bool {
        let mut any = false;
        for (want, what) in [(&mut self.writes, "writes"), (&mut self.trims, "trims")] {
            if std::mem::take(&mut want.starved) {
                any = true;
                if want.full.replace(full).is_none() {
                    first(what);
                }
            }
        }
        any
    }

    /// Records the outcome of an attempt to start new heads: `full` if the host had no space.
    pub fn restart_ended(&mut self, full: Option<Full>) {
        self.restart_full = full;
    }
}
