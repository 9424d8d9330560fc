//! A driver without a socket, for tests: dataless chains in its own memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flowstone_block::{
    Geometry, Intake, Layer, NextLook, Op, Origin, Reactor, SectorCount, Throttle,
};
use flowstone_frontend::vhost_user::VirtQueue;
use flowstone_frontend::vhost_user::fuzzing::{InflightRegion, log_for, queue_over};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::PollMode;
use crate::queue::Whole;
use crate::task::QueueSpec;

/// Queue size.
pub const SIZE: u16 = 128;
/// Number of its chains, of two descriptors each.
pub const CHAINS: u16 = SIZE / 2;

const MEMORY_BYTES: u64 = 0x2000;
const AVAIL_AT: u64 = 16 * SIZE as u64;
const USED_AT: u64 = (AVAIL_AT + 6 + 2 * SIZE as u64).next_multiple_of(4);
const HEADERS_AT: u64 = 0x1000;
const STATUSES_AT: u64 = 0x1800;

/// The request of its chains.
#[derive(Clone, Copy)]
pub enum Asks {
    /// A read of a sector; the status is the byte behind it.
    Read = 0,
    /// A flush.
    Flush = 4,
    /// An unknown request type.
    Nonsense = 0xffff,
}

/// A throttle without limits.
pub struct Unlimited;

impl Throttle for Unlimited {
    type Intake = Self;

    fn intake(self: Arc<Self>, _disk: &Geometry, _reactor: &Reactor) -> Self {
        Self
    }
}

impl Intake for Unlimited {
    fn open(&mut self, _available: usize) -> bool {
        true
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn spend(&self, _op: Op) {}

    fn spend_answered(&self, _chains: usize) {}

    fn close(&mut self) {}

    fn forget(&mut self) {}

    fn is_closed(&self) -> bool {
        false
    }

    fn next_look(&self) -> NextLook {
        NextLook::OnWake
    }
}

/// Returns the settings to run its queue over `layer`.
pub fn spec_of(layer: Arc<dyn Layer>, poll: PollMode) -> QueueSpec {
    let origin = Origin::Queue { disk: 0, queue: 0 };
    let (counters, name) = (Arc::default(), "queue".into());
    let (budget, cpus, home) = Default::default();
    QueueSpec { layer, origin, counters, poll, budget, name, cpus, home }
}

/// A guest with one queue and its memory.
pub struct FakeGuest {
    memory: File,
    offered: u16,
    log: Arc<InflightRegion>,
}

impl FakeGuest {
    /// Makes a guest and its queue.
    pub fn new(asks: Asks) -> (Self, Whole<VirtQueue, Unlimited>) {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        let mut content = vec![0; MEMORY_BYTES as usize];
        let mut put = |at: u64, bytes: &[u8]| {
            content[at as usize..][..bytes.len()].copy_from_slice(bytes);
        };
        for chain in 0..u64::from(CHAINS) {
            let (header, next) = (HEADERS_AT + 16 * chain, 2 * chain + 1);
            put(header, &(asks as u32).to_le_bytes());
            put(32 * chain, &header.to_le_bytes());
            put(32 * chain + 8, &16u32.to_le_bytes());
            put(32 * chain + 12, &1u16.to_le_bytes());
            put(32 * chain + 14, &(next as u16).to_le_bytes());
            let bytes = if matches!(asks, Asks::Read) { 512u64 } else { 0 };
            put(16 * next, &(STATUSES_AT + chain - bytes).to_le_bytes());
            put(16 * next + 8, &(1 + bytes as u32).to_le_bytes());
            put(16 * next + 12, &2u16.to_le_bytes());
        }
        // At once: models make a guest in each of their executions.
        memory.write_all_at(&content, 0).unwrap();
        let kick = File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        assert!(USED_AT + 6 + 8 * u64::from(SIZE) <= HEADERS_AT);
        let (guest, log) = (memory.try_clone().unwrap(), log_for(SIZE).unwrap());
        let capacity = SectorCount::new(1 << 12);
        let queue = queue_over(guest, MEMORY_BYTES, SIZE, true, kick, capacity, &log).unwrap();
        (Self { memory, offered: 0, log }, Whole { queue, throttle: Arc::new(Unlimited) })
    }

    /// Returns its queue for the next daemon.
    pub fn queue(&self) -> VirtQueue {
        let kick = File::from(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
        let (guest, capacity) = (self.memory.try_clone().unwrap(), SectorCount::new(1 << 12));
        queue_over(guest, MEMORY_BYTES, SIZE, true, kick, capacity, &self.log).unwrap()
    }

    /// Breaks its ring by an impossible avail index.
    pub fn jump(&self) {
        self.memory
            .write_all_at(&self.offered.wrapping_add(999).to_le_bytes(), AVAIL_AT + 2)
            .unwrap();
    }

    /// Returns the head and status of the chain at `place` in the used ring.
    pub fn used_at(&self, place: u16) -> (u16, u8) {
        let (mut entry, mut status) = ([0; 4], [0]);
        let at = USED_AT + 4 + 8 * u64::from(place % SIZE);
        self.memory.read_exact_at(&mut entry, at).unwrap();
        let chain = u32::from_le_bytes(entry) as u16 / 2;
        self.memory.read_exact_at(&mut status, STATUSES_AT + u64::from(chain)).unwrap();
        (chain, status[0])
    }

    /// Makes a chain available, without a notification.
    pub fn offer(&mut self, chain: u16) {
        let at = AVAIL_AT + 4 + 2 * u64::from(self.offered % SIZE);
        self.memory.write_all_at(&(2 * chain).to_le_bytes(), at).unwrap();
        self.offered = self.offered.wrapping_add(1);
        self.memory.write_all_at(&self.offered.to_le_bytes(), AVAIL_AT + 2).unwrap();
    }

    /// Returns the used index that it sees.
    pub fn used(&self) -> u16 {
        let mut index = [0; 2];
        self.memory.read_exact_at(&mut index, USED_AT + 2).unwrap();
        u16::from_le_bytes(index)
    }
}
