//! What a disk has at a device, and whether it is active there.

use super::super::demand::Demand;

/// A disk that has asked for nothing in so long is not active, unless something of it is at the
/// device,
pub const ACTIVE_FOR_NS: u64 = 200_000_000;
/// ... or it asks now and then, at intervals no longer than this: then it is active for twice as
/// long as its last ones were. Else each of its requests would find all at the device that others
/// like to have there.
const INTERVAL_MAX_NS: u64 = 1_000_000_000;
/// ... which has lately given something of it back.
const HUNG_NS: u64 = 1_000_000_000;
/// See the scheduler.
pub const STALLED_NS: u64 = 100_000_000;

/// Who has had something come back asks for more in so long, if it does: about a slice of a CPU
/// that its guest, or our thread, may have to wait for.
pub const EXPECTED_NS: u64 = 4_000_000;

/// What a disk has at the device.
#[derive(Default)]
pub struct DiskState {
    pub on_their_way: usize,
    pub waiting: usize,
    /// As the last census found it, and nothing has come back since.
    pub is_stalled: bool,
    /// As the last census found it.
    pub is_counted: bool,
    pub demand: Demand,
    /// When something came back, or was sent while there was nothing on its way.
    moved_at: u64,
    /// When it asked for something.
    active_at: Option<u64>,
    /// For how long it is active then.
    active_for: u64,
}

impl DiskState {
    pub fn asked(&mut self, now: u64) {
        let interval = self.active_at.replace(now).map_or(u64::MAX, |at| now.saturating_sub(at));
        self.active_for = match interval {
            // Looked at every few milliseconds while it is at work: that is no interval, so it ends
            // slowly.
            0..=INTERVAL_MAX_NS => (2 * interval).max(self.active_for - self.active_for / 8),
            _ => 0,
        };
    }

    pub fn sent(&mut self, requests: usize, now: u64) {
        if self.on_their_way == 0 && requests > 0 {
            self.moved_at = now;
        }
        self.on_their_way += requests;
    }

    pub fn came_back(&mut self, requests: usize, now: u64) {
        self.on_their_way -= requests;
        self.moved_at = now;
    }

    pub const fn stalls_at(&self) -> u64 {
        self.moved_at.saturating_add(STALLED_NS)
    }

    /// Whether it has something at the device, or has had something come back just now.
    pub fn is_expected(&self, now: u64) -> bool {
        let is_fresh = self.active_at.is_some() && now.saturating_sub(self.moved_at) < EXPECTED_NS;
        self.on_their_way > 0 || is_fresh
    }

    pub fn is_active(&self, now: u64) -> bool {
        let is_served = self.on_their_way > 0 && now.saturating_sub(self.moved_at) < HUNG_NS;
        let active_for = self.active_for.max(ACTIVE_FOR_NS);
        is_served || self.active_at.is_some_and(|at| now.saturating_sub(at) < active_for)
    }
}
