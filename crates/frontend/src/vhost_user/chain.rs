//! Walks an unvalidated descriptor chain.
//!
//! Bounded by construction: a chain visits at most as many descriptors as the ring has, or an
//! indirect table's worth, so loops end. The rules are those of virtio 1.2, section 2.7.5.

use super::memory::GuestMemory;
use super::protocol::SEGMENTS_MAX;
use super::protocol::descriptor_flag::{INDIRECT, NEXT, WRITE};
use super::ring::{DESCRIPTOR_BYTES, Descriptor, SplitRing, read_descriptor};

/// Reasons to reject a chain. All of them are faults of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChain {
    /// More descriptors than allowed: a loop.
    TooLong,
    /// A descriptor index past the end of its table.
    OutOfTable,
    /// An indirect table that is empty, not a whole number of descriptors, too large, nested, or
    /// combined with `next`.
    Indirect,
    /// A buffer outside guest memory.
    Unmapped,
    /// A buffer of zero length.
    Empty,
    /// A readable buffer behind a writable one.
    Order,
    /// Too short for the header or the status byte.
    Short,
}

/// One buffer of a chain: guest address, length, direction.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: u64,
    pub bytes: u32,
    pub writable: bool,
}

/// Returns the most descriptors of one chain.
fn chain_max(ring: &SplitRing) -> u32 {
    u32::from(ring.size()).max(SEGMENTS_MAX + 2)
}

/// Calls `visit` with each buffer of the chain that begins at `head`: descriptors of the ring's
/// table, of which the last may name an indirect table.
pub fn walk(
    ring: &SplitRing,
    head: u16,
    visit: impl FnMut(Buffer) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let mut walker = Walker { visit, seen_writable: false };
    let mut descriptor = ring.descriptor(head).ok_or(BadChain::OutOfTable)?;
    for _ in 0..ring.size() {
        if descriptor.flags & INDIRECT != 0 {
            return walker.indirect(ring, descriptor);
        }
        walker.buffer(descriptor)?;
        if descriptor.flags & NEXT == 0 {
            return Ok(());
        }
        descriptor = ring.descriptor(descriptor.next).ok_or(BadChain::OutOfTable)?;
    }
    Err(BadChain::TooLong)
}

struct Walker<V> {
    visit: V,
    seen_writable: bool,
}

impl<V: FnMut(Buffer) -> Result<(), BadChain>> Walker<V> {
    fn buffer(&mut self, descriptor: Descriptor) -> Result<(), BadChain> {
        let writable = descriptor.flags & WRITE != 0;
        if descriptor.bytes == 0 {
            return Err(BadChain::Empty);
        }
        if self.seen_writable && !writable {
            return Err(BadChain::Order);
        }
        self.seen_writable = writable;
        (self.visit)(Buffer { address: descriptor.address, bytes: descriptor.bytes, writable })
    }

    fn indirect(&mut self, ring: &SplitRing, table: Descriptor) -> Result<(), BadChain> {
        let bytes = u64::from(table.bytes);
        let entries = bytes / DESCRIPTOR_BYTES;
        let whole = entries > 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES);
        if !whole || entries > u64::from(chain_max(ring)) || table.flags & NEXT != 0 {
            return Err(BadChain::Indirect);
        }
        let start = table_start(ring.memory(), table)?;
        let mut index = 0;
        for _ in 0..entries {
            // SAFETY: the index is below the table's length, and the whole table is mapped.
            let descriptor = unsafe { read_descriptor(start.add(usize::from(index))) };
            if descriptor.flags & INDIRECT != 0 {
                return Err(BadChain::Indirect);
            }
            self.buffer(descriptor)?;
            if descriptor.flags & NEXT == 0 {
                return Ok(());
            }
            index = descriptor.next;
            if u64::from(index) >= entries {
                return Err(BadChain::OutOfTable);
            }
        }
        Err(BadChain::TooLong)
    }
}

fn table_start(memory: &GuestMemory, table: Descriptor) -> Result<*const Descriptor, BadChain> {
    let start = memory.from_guest(table.address, u64::from(table.bytes));
    Ok(start.map_err(|_| BadChain::Unmapped)?.cast_const().cast())
}
