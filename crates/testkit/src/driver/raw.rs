//! Raw writes to the rings, as by a hostile or broken guest.
//!
//! These methods write exactly the given values, check nothing and keep no state: completions of
//! raw entries are read with `pop_raw`. They are the input of robustness tests of a backend.

use std::sync::atomic::Ordering;

use super::queue::DESCRIPTOR_BYTES;
use super::{DriverQueue, GuestAddress, Slice};

/// A descriptor, field by field.
#[derive(Clone, Copy, Debug)]
pub struct RawDescriptor {
    /// Guest-physical address of the buffer.
    pub addr: GuestAddress,
    /// Length of the buffer.
    pub len: u32,
    /// `DESC_*` bits, or anything else.
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

impl RawDescriptor {
    /// Writes the descriptor into a table, as two 64-bit words.
    pub fn store(&self, table: &Slice, index: u16) {
        let offset = usize::from(index) * DESCRIPTOR_BYTES;
        let rest = u64::from(self.len) | u64::from(self.flags) << 32 | u64::from(self.next) << 48;
        table.cell64(offset).store(self.addr.0.to_le(), Ordering::Relaxed);
        table.cell64(offset + 8).store(rest.to_le(), Ordering::Relaxed);
    }
}

impl DriverQueue {
    /// Overwrites descriptor `index` of the ring's own table.
    pub fn raw_descriptor(&mut self, index: u16, addr: u64, len: u32, flags: u16, next: u16) {
        RawDescriptor { addr: GuestAddress(addr), len, flags, next }
            .store(&self.descriptors, index);
    }

    /// Writes any number to the next entry of the available ring. Visible after `publish`.
    pub fn raw_avail(&mut self, head: u16) {
        self.write_avail(head);
    }

    /// Overwrites `avail.idx` at once; the queue's own index stays unchanged.
    pub fn raw_avail_index(&mut self, index: u16) {
        self.avail.cell16(2).store(index.to_le(), Ordering::Release);
    }
}
