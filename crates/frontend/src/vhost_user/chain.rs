//! Walking a descriptor chain that nobody has checked yet.
//!
//! Bounded by construction: a chain visits at most as many descriptors as the ring has, or an
//! indirect table's worth, so loops end. The rules are those of virtio 1.2, section 2.7.5.

use super::memory::GuestMemory;
use super::protocol::SEGMENTS_MAX;
use super::protocol::descriptor_flag::{INDIRECT, NEXT, WRITE};
use super::ring::{DESCRIPTOR_BYTES, Descriptor, SplitRing, read_descriptor};

/// Why a chain is not a request. All of them are the driver's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadChain {
    /// More descriptors than may be: a loop.
    TooLong,
    /// A descriptor number past the end of its table.
    OutOfTable,
    /// An indirect table that is empty, not a whole number of descriptors, too large, nested, or
    /// combined with `next`.
    Indirect,
    /// A buffer outside guest memory.
    Unmapped,
    /// A buffer of no bytes.
    Empty,
    /// A readable buffer behind a writable one.
    Order,
    /// No room for the header or for the status byte.
    Short,
}

/// One buffer of a chain: guest address, length, direction.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub address: u64,
    pub bytes: u32,
    pub writable: bool,
}

/// Most descriptors of one chain.
fn chain_max(ring: &SplitRing) -> u32 {
    u32::from(ring.size()).max(SEGMENTS_MAX + 2)
}

/// Calls `visit` with each buffer of the chain that begins at `head`.
pub fn walk(
    ring: &SplitRing,
    head: u16,
    mut visit: impl FnMut(Buffer) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let first = ring.descriptor(head).ok_or(BadChain::OutOfTable)?;
    if first.flags & INDIRECT != 0 {
        return walk_indirect(ring, first, visit);
    }
    let table = |index: u16| ring.descriptor(index);
    walk_table(first, u32::from(ring.size()), table, &mut visit)
}

fn walk_indirect(
    ring: &SplitRing,
    table: Descriptor,
    mut visit: impl FnMut(Buffer) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let bytes = u64::from(table.bytes);
    let entries = bytes / DESCRIPTOR_BYTES;
    let whole = entries > 0 && bytes.is_multiple_of(DESCRIPTOR_BYTES);
    if !whole || entries > u64::from(chain_max(ring)) || table.flags & NEXT != 0 {
        return Err(BadChain::Indirect);
    }
    let start = table_start(ring.memory(), table)?;
    let read = |index: u16| {
        // SAFETY: the index is below the table's length, and the whole table is mapped.
        (u64::from(index) < entries).then(|| unsafe { read_descriptor(start.add(index.into())) })
    };
    let first = read(0).ok_or(BadChain::OutOfTable)?;
    walk_table(first, entries as u32, read, &mut visit)
}

fn table_start(memory: &GuestMemory, table: Descriptor) -> Result<*const Descriptor, BadChain> {
    let start = memory.from_guest(table.address, u64::from(table.bytes));
    Ok(start.map_err(|_| BadChain::Unmapped)?.cast_const().cast())
}

fn walk_table(
    first: Descriptor,
    count_max: u32,
    table: impl Fn(u16) -> Option<Descriptor>,
    visit: &mut impl FnMut(Buffer) -> Result<(), BadChain>,
) -> Result<(), BadChain> {
    let mut descriptor = first;
    let mut seen_writable = false;
    for _ in 0..count_max {
        let writable = descriptor.flags & WRITE != 0;
        if descriptor.flags & INDIRECT != 0 {
            return Err(BadChain::Indirect);
        }
        if descriptor.bytes == 0 {
            return Err(BadChain::Empty);
        }
        if seen_writable && !writable {
            return Err(BadChain::Order);
        }
        seen_writable = writable;
        visit(Buffer { address: descriptor.address, bytes: descriptor.bytes, writable })?;
        if descriptor.flags & NEXT == 0 {
            return Ok(());
        }
        descriptor = table(descriptor.next).ok_or(BadChain::OutOfTable)?;
    }
    Err(BadChain::TooLong)
}
