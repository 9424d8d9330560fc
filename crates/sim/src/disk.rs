//! The simulated disk: the file interface, and the controls for tests.

use std::io;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use fastrand::Rng;
use flowstone_block::{Outcome, QueueContext};
use flowstone_fileio::{FileChannel, FileIo, FileOffset, FileOp};

use super::change::Change;
use super::channel::SimChannel;
use super::faults::Fault;
use super::history::History;
use super::medium::Medium;
use super::schedule::Schedule;
use super::state::{BLOCK_BYTES, Shared, State};

/// A disk in memory that records its history, and which part of it is durable.
///
/// A clone is another handle to the same disk.
#[derive(Clone)]
pub struct SimDisk {
    state: Shared,
}

impl SimDisk {
    /// Makes an empty disk of this size, without allocated space.
    pub fn new(bytes: u64) -> Self {
        Self::holding(Medium::new(bytes))
    }

    /// Makes a disk that durably holds `content`.
    pub fn from_bytes(content: &[u8]) -> Self {
        Self::holding(Medium::from_bytes(content))
    }

    pub(super) fn holding(medium: Medium) -> Self {
        Self::with_state(State::new(medium.clone(), History::new(medium)))
    }

    pub(super) fn with_state(state: State) -> Self {
        Self { state: Shared::new(state) }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sets the execution order of channels made from now on.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.state().schedule = schedule;
    }

    /// Limits the space of the file: an operation that needs more fails with `ENOSPC` and does
    /// nothing. `None` is no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Makes discards leave random data, generated from `seed`, as on a device with dm-crypt.
    pub fn leave_garbage_after_discards(&self, seed: u64) {
        self.state().garbage = Some(Rng::with_seed(seed));
    }

    /// Injects a fault.
    pub fn inject(&self, fault: Fault) {
        self.state().faults.waiting.push(fault);
    }

    /// Removes all faults that have not struck, and those that always strike.
    pub fn clear_faults(&self) {
        self.state().faults.waiting.clear();
    }

    /// Returns the number of operations struck by a fault.
    pub fn faults_struck(&self) -> u64 {
        self.state().faults.struck
    }

    /// Submits one operation and completes it at once, whatever the schedule, with no other one of
    /// its own in flight. `memory` is the buffer of a read or a write, empty for other operations.
    ///
    /// # Panics
    /// If `memory` does not have the length of the read or write.
    pub fn run(&self, op: FileOp, memory: &mut [u8]) -> Outcome {
        if let FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. } = op {
            assert_eq!(bytes, memory.len() as u64, "memory of another length");
        }
        let mut state = self.state();
        let work = state.begin(op, || Arc::from(&*memory));
        state.complete(work, |found| memory.copy_from_slice(found))
    }

    /// Reads at `offset` as a channel would now; zeroes beyond the end of the file. No fault
    /// strikes.
    pub fn read_at(&self, offset: u64, target: &mut [u8]) {
        self.state().live.read(offset, target);
    }

    /// Writes at `offset` outside any queue, at any alignment: at once, durably, without faults and
    /// limits.
    pub fn write_at(&self, offset: u64, source: &[u8]) {
        self.state().at_once(Change::Write { at: offset, data: source.into() }, true);
    }

    /// Flips bit `bit` (0 is the lowest) of the byte at `offset` on the medium, so that it stays
    /// flipped after every later crash, as long as nothing is written there. A byte without space
    /// has no bits to flip.
    ///
    /// # Panics
    /// If `bit` is not below 8.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        assert!(bit < 8, "a byte has no bit {bit}");
        self.state().at_once(Change::Flip { at: offset, bit }, true);
    }

    /// Returns the whole file as reads would see it now.
    pub fn to_bytes(&self) -> Vec<u8> {
        let state = self.state();
        let mut content = vec![0; state.live.size() as usize];
        state.live.read(0, &mut content);
        content
    }
}

impl FileIo for SimDisk {
    fn size(&self) -> io::Result<u64> {
        Ok(self.state().live.size())
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        Ok(self.state().set_size(bytes)?)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(self.state().live.allocated_bytes())
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        let found = self.state().live.next_data(from.get());
        Ok(found.map(|range| FileOffset::new(range.start)..FileOffset::new(range.end)))
    }

    fn discards_to_zeroes(&self) -> bool {
        self.state().garbage.is_none()
    }

    fn block_bytes(&self) -> u32 {
        BLOCK_BYTES
    }

    fn describe(&self) -> String {
        "simulated disk".into()
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        let mut state = self.state();
        let number = state.channels;
        state.channels += 1;
        Ok(Box::new(SimChannel::new(self.state.clone(), state.schedule, number)))
    }
}
