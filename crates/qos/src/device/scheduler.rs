//! Whose request a contended device gets next, as pure state on a clock in nanoseconds.
//!
//! Start-time fair queueing with a bounded depth, SFQ(D) (Jin, Chase, Kaur 2004): up to D requests
//! are on their way, so that the device has something to choose from; of those that wait,
//! [`FairQueue`] says which goes when one has come back. Two rules besides:
//!
//! * A disk with nothing on its way sends at once, without a slot, unless it has had [`LEAD`] more
//!   than its part: a tag moves when a request is sent, so those with all slots are ahead by as
//!   much.
//! * A disk of which nothing has come back for [`STALLED_NS`] holds no slots, and sends nothing
//!   more until something has: what hangs below one file does not keep others of the same device
//!   from sending.
//!
//! Nothing is held back unless two disks are active.
//!
//! Shares follow the weights as long as something of each disk waits. So the depth may be as large
//! as that allows: what the disk that wants least for its weight wants to have at the device, and
//! of each other one as much for its own weight, a little less in all. It is never less than
//! [`DEPTH_LEAST`], and four for the heaviest disk, fewer for the others, as far as they want that:
//! sixteen disks with some requests each are to have the device, although one hardly asks.

use slab::Slab;

use super::demand::Demand;
use crate::{DiskKey, FairQueue, QueueKey, Weight};

/// The depth while disks contend, apart from the first request of each: at least this,
const DEPTH_LEAST: usize = 16;
/// ... and so many for the heaviest disk, if it wants them.
const DEPTH_EACH: f64 = 4.0;
/// Of the depth at which the disk that wants least would have nothing waiting.
const BACKLOGGED: f64 = 7.0 / 8.0;
/// What a request costs besides its bytes: a device takes about as long for it as for so many
/// bytes.
const REQUEST_BYTES: u64 = 16 << 10;
/// See the module.
const LEAD: u64 = DEPTH_LEAST as u64 * REQUEST_BYTES;
/// A disk that has asked for nothing in so long is not active, unless something of it is at the
/// device,
const ACTIVE_FOR_NS: u64 = 200_000_000;
/// ... or it asks now and then, at intervals no longer than this: then it is active for twice as
/// long as its last ones were. Else each of its requests would find all at the device that others
/// like to have there.
const INTERVAL_MAX_NS: u64 = 1_000_000_000;
/// ... which has lately given something of it back.
const HUNG_NS: u64 = 1_000_000_000;
/// See the module.
const STALLED_NS: u64 = 100_000_000;
/// How old a [`Census`] may be: what it counts changes a thousand times more slowly.
const CENSUS_NS: u64 = 200_000;

/// See the module.
#[derive(Default)]
pub struct Scheduler {
    fair: FairQueue<u64>,
    disks: Slab<DiskState>,
    census: Census,
    /// What disks that do not stall have on their way.
    slots: usize,
}

/// What is counted over all disks, now and then: so that a grant costs no more where they are many.
#[derive(Default)]
struct Census {
    at: u64,
    /// How many disks are active.
    active: usize,
    /// How many requests may be on their way while disks contend.
    depth: usize,
    /// No disk stalls before.
    stalls_at: u64,
    /// Disks have come, gone, become active, or changed their weights since.
    is_outdated: bool,
}

/// What a disk has at the device.
#[derive(Default)]
struct DiskState {
    on_their_way: usize,
    waiting: usize,
    /// As the last census found it, and nothing has come back since.
    is_stalled: bool,
    /// As the last census found it.
    is_counted: bool,
    demand: Demand,
    /// When something came back, or was sent while there was nothing on its way.
    moved_at: u64,
    /// When it asked for something.
    active_at: Option<u64>,
    /// For how long it is active then.
    active_for: u64,
}

impl DiskState {
    fn asked(&mut self, now: u64) {
        let interval = self.active_at.replace(now).map_or(u64::MAX, |at| now.saturating_sub(at));
        self.active_for = match interval {
            // Looked at every few milliseconds while it is at work: that is no interval, so it ends
            // slowly.
            0..=INTERVAL_MAX_NS => (2 * interval).max(self.active_for - self.active_for / 8),
            _ => 0,
        };
    }

    fn sent(&mut self, requests: usize, now: u64) {
        if self.on_their_way == 0 {
            self.moved_at = now;
        }
        self.on_their_way += requests;
    }

    fn came_back(&mut self, requests: usize, now: u64) {
        self.on_their_way -= requests;
        self.moved_at = now;
    }

    const fn stalls_at(&self) -> u64 {
        self.moved_at.saturating_add(STALLED_NS)
    }

    fn is_active(&self, now: u64) -> bool {
        let is_served = self.on_their_way > 0 && now.saturating_sub(self.moved_at) < HUNG_NS;
        let active_for = self.active_for.max(ACTIVE_FOR_NS);
        is_served || self.active_at.is_some_and(|at| now.saturating_sub(at) < active_for)
    }
}

impl Scheduler {
    pub fn add_disk(&mut self, weight: Weight) -> DiskKey {
        let key = self.fair.add_disk(weight);
        let at = self.disks.insert(DiskState::default());
        // Both slabs are filled and emptied together, so they give the same places.
        assert!(at == key.0, "a disk has one key");
        self.fair.set_apart(key, true);
        self.census.is_outdated = true;
        key
    }

    /// A disk whose queues are gone.
    pub fn remove_disk(&mut self, disk: DiskKey) {
        let removed = self.disks.remove(disk.0);
        if !removed.is_stalled {
            self.slots -= removed.on_their_way;
        }
        self.fair.remove_disk(disk);
        self.census.is_outdated = true;
    }

    pub fn set_weight(&mut self, disk: DiskKey, weight: Weight) {
        self.fair.set_weight(disk, weight);
        self.census.is_outdated = true;
    }

    pub fn add_queue(&mut self, disk: DiskKey) -> QueueKey {
        self.fair.add_queue(disk)
    }

    pub fn remove_queue(&mut self, queue: QueueKey) {
        self.disks[self.fair.disk_of(queue).0].waiting -= self.fair.waiting(queue);
        self.fair.remove_queue(queue);
    }

    /// A disk asks for something. Returns whether disks contend.
    pub fn touch(&mut self, disk: DiskKey, now: u64) -> bool {
        let disk = &mut self.disks[disk.0];
        disk.asked(now);
        self.census.is_outdated |= !disk.is_counted;
        self.count(now);
        self.is_contended()
    }

    const fn is_contended(&self) -> bool {
        self.census.active > 1
    }

    /// Counts again, if that is due.
    fn count(&mut self, now: u64) {
        if self.census.is_outdated || now.saturating_sub(self.census.at) >= CENSUS_NS {
            self.count_now(now);
        }
    }

    fn count_now(&mut self, now: u64) {
        let mut census = Census { at: now, stalls_at: u64::MAX, ..Census::default() };
        self.slots = 0;
        for (_, disk) in &mut self.disks {
            disk.is_counted = disk.is_active(now);
            disk.is_stalled = disk.on_their_way > 0 && now >= disk.stalls_at();
            census.active += usize::from(disk.is_counted);
            if disk.on_their_way > 0 && !disk.is_stalled {
                self.slots += disk.on_their_way;
                census.stalls_at = census.stalls_at.min(disk.stalls_at());
            }
        }
        self.census = census;
        if self.is_contended() {
            self.census.depth = self.depth();
        }
    }

    /// A request of so many bytes waits.
    pub fn push(&mut self, queue: QueueKey, bytes: u64) {
        let cost = REQUEST_BYTES.saturating_add(bytes);
        self.fair.push(queue, cost);
        let disk = &mut self.disks[self.fair.disk_of(queue).0];
        disk.waiting += 1;
        disk.demand.note_cost(cost);
    }

    /// A batch of a disk's requests has been pushed.
    pub fn pushed(&mut self, disk: DiskKey, now: u64) {
        let disk = &mut self.disks[disk.0];
        disk.demand.note_level(disk.waiting + disk.on_their_way, now);
    }

    /// How many requests may be on their way while disks contend.
    fn depth(&self) -> usize {
        let active = || self.disks.iter().filter(|(_, disk)| disk.is_counted);
        let weight = |at| f64::from(self.fair.weight(DiskKey(at)).get());
        let (mut least, mut heaviest) = (f64::MAX, 0.0f64);
        for (at, DiskState { demand, .. }) in active() {
            least = least.min(demand.requests() * demand.cost() / weight(at));
            heaviest = heaviest.max(weight(at));
        }
        let (mut fair, mut each) = (0.0, 0.0);
        for (at, DiskState { demand, .. }) in active() {
            fair += least * weight(at) / demand.cost().max(1.0);
            each += demand.requests().min(DEPTH_EACH * weight(at) / heaviest);
        }
        DEPTH_LEAST.max((BACKLOGGED * fair) as usize).max(each as usize)
    }

    /// Requests have gone to the device without waiting.
    pub fn sent(&mut self, disk: DiskKey, requests: usize, now: u64) {
        let state = &mut self.disks[disk.0];
        state.sent(requests, now);
        if !state.is_stalled && state.on_their_way > 0 {
            self.slots += requests;
            self.census.stalls_at = self.census.stalls_at.min(state.stalls_at());
        }
        let is_apart = state.on_their_way == 0;
        self.fair.set_apart(disk, is_apart);
    }

    /// Requests have come back.
    pub fn came_back(&mut self, disk: DiskKey, requests: usize, now: u64) {
        let state = &mut self.disks[disk.0];
        if !std::mem::replace(&mut state.is_stalled, false) {
            self.slots -= state.on_their_way;
        }
        state.came_back(requests, now);
        self.slots += state.on_their_way;
        let is_apart = state.on_their_way == 0;
        self.fair.set_apart(disk, is_apart);
    }

    /// Lets everything go that may, and names the queue of each.
    pub fn advance(&mut self, now: u64, mut granted: impl FnMut(QueueKey)) {
        self.count(now);
        while let Some(disk) = self.next() {
            let (queue, _) = self.fair.grant(disk, |cost| *cost);
            self.disks[disk.0].waiting -= 1;
            self.sent(disk, 1, now);
            granted(queue);
        }
    }

    /// Whose request may go.
    fn next(&self) -> Option<DiskKey> {
        let Self { fair, disks, .. } = self;
        if !self.is_contended() {
            return fair.next(|_| true);
        }
        let first = fair.next(|disk| !disks[disk.0].is_stalled)?;
        if self.slots < self.census.depth {
            return Some(first);
        }
        // What has nothing on its way needs no slot.
        fair.next_apart(|disk| fair.lead(disk, first) <= LEAD)
    }

    /// How many requests of a queue have been let go since the last call.
    pub fn take_granted(&mut self, queue: QueueKey) -> usize {
        self.fair.take_granted(queue)
    }

    /// When something may go although nothing has come back, if anything of the queue waits.
    pub fn next_look(&mut self, queue: QueueKey, now: u64) -> Option<u64> {
        self.fair.first(queue)?;
        self.census.is_outdated |= self.census.stalls_at <= now;
        self.count(now);
        Some(self.census.stalls_at).filter(|at| *at < u64::MAX)
    }
}

#[cfg(test)]
mod tests;
