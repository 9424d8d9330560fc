//! A split virtqueue's three areas in guest memory (virtio 1.2, section 2.7).
//!
//! ```text
//! descriptors   size x { addr u64, len u32, flags u16, next u16 }
//! avail         flags u16, idx u16, ring[size] u16, used_event u16      driver writes
//! used          flags u16, idx u16, ring[size] {id u32, len u32}, avail_event u16   we write
//! ```
//! All of it is shared with a guest that may write it at any time: indices are atomics, the rest is
//! read once, volatile, and checked as a copy. All numbers are little-endian.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::memory::{GuestMemory, Unmapped};
use super::protocol::{AVAIL_NO_INTERRUPT, QUEUE_SIZE_MAX, USED_NO_NOTIFY};

/// A descriptor as the driver wrote it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Descriptor {
    /// Guest address of the buffer.
    pub address: u64,
    /// Bytes.
    pub bytes: u32,
    /// See `descriptor_flag`.
    pub flags: u16,
    /// The index of the next descriptor, if the flags say so.
    pub next: u16,
}

/// Bytes of a descriptor in memory.
pub const DESCRIPTOR_BYTES: u64 = size_of::<Descriptor>() as u64;

/// Addresses of the ring's areas in the monitor's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingAddresses {
    /// The descriptor table.
    pub descriptors: u64,
    /// The avail ring.
    pub avail: u64,
    /// The used ring.
    pub used: u64,
}

/// Reasons why a ring cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRing {
    /// The size is zero, not a power of two, or too large.
    Size,
    /// An area is not in guest memory.
    Unmapped,
    /// An area is not aligned as virtio demands.
    Misaligned,
}

impl From<Unmapped> for BadRing {
    fn from(_: Unmapped) -> Self {
        Self::Unmapped
    }
}

/// A ring whose areas have been found in guest memory. A clone has the same areas: the taking half
/// of a queue uses the avail side of its clone and the driver's notifications; the completing half
/// uses the used side and the interrupts.
#[derive(Clone)]
pub struct SplitRing {
    size: u16,
    event_idx: bool,
    descriptors: *const Descriptor,
    avail: *mut u16,
    used: *mut u16,
    /// Keeps the areas mapped.
    memory: Arc<GuestMemory>,
}

// SAFETY: the pointers stay valid wherever the ring goes, since it carries the mapping along; of
// each side, one thread at a time uses a ring, and what both sides touch is atomic.
unsafe impl Send for SplitRing {}

/// Returns whether the step from `old` to `new` passes `event`, as defined for `used_event` and
/// `avail_event` (virtio 1.2, section 2.7.10).
fn passes(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

impl SplitRing {
    /// Finds the areas in guest memory.
    pub fn new(
        memory: Arc<GuestMemory>,
        size: u16,
        event_idx: bool,
        at: RingAddresses,
    ) -> Result<Self, BadRing> {
        if !size.is_power_of_two() || size > QUEUE_SIZE_MAX {
            return Err(BadRing::Size);
        }
        let entries = u64::from(size);
        let descriptors = memory.from_monitor(at.descriptors, DESCRIPTOR_BYTES * entries)?;
        let avail = memory.from_monitor(at.avail, 6 + 2 * entries)?;
        let used = memory.from_monitor(at.used, 6 + 8 * entries)?;
        let aligned = |pointer: *mut u8, to: usize| (pointer as usize).is_multiple_of(to);
        if !aligned(descriptors, 16) || !aligned(avail, 2) || !aligned(used, 4) {
            return Err(BadRing::Misaligned);
        }
        Ok(Self {
            size,
            event_idx,
            descriptors: descriptors.cast(),
            avail: avail.cast(),
            used: used.cast(),
            memory,
        })
    }

    /// Returns the ring size.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// Returns the guest memory that contains the ring.
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    fn slot(&self, position: u16) -> usize {
        usize::from(position & (self.size - 1))
    }

    /// Returns the `n`-th 16-bit word of the avail area.
    fn avail_word(&self, n: usize) -> &AtomicU16 {
        debug_assert!(n < 3 + usize::from(self.size));
        // SAFETY: in bounds of the area found in `new`, aligned, mapped as long as we are.
        unsafe { AtomicU16::from_ptr(self.avail.add(n)) }
    }

    /// Returns the `n`-th 16-bit word of the used area.
    fn used_word(&self, n: usize) -> &AtomicU16 {
        debug_assert!(n < 3 + 4 * usize::from(self.size));
        // SAFETY: as for avail_word.
        unsafe { AtomicU16::from_ptr(self.used.add(n)) }
    }

    /// Returns the driver's avail index; entries published before it are visible.
    pub fn avail_index(&self) -> u16 {
        u16::from_le(self.avail_word(1).load(Ordering::Acquire))
    }

    /// Returns the head at a position of the avail ring, unchecked: the driver may have written any
    /// number.
    pub fn avail_head(&self, position: u16) -> u16 {
        u16::from_le(self.avail_word(2 + self.slot(position)).load(Ordering::Relaxed))
    }

    /// Returns a descriptor of the table, or `None` past its end.
    pub fn descriptor(&self, index: u16) -> Option<Descriptor> {
        if index >= self.size {
            return None;
        }
        // SAFETY: in bounds of the table found in `new`, aligned, mapped as long as we are.
        Some(unsafe { read_descriptor(self.descriptors.add(usize::from(index))) })
    }

    /// Returns our used index.
    pub fn used_index(&self) -> u16 {
        u16::from_le(self.used_word(1).load(Ordering::Relaxed))
    }

    /// Writes a used entry that the driver does not see yet.
    pub fn set_used(&self, position: u16, head: u16, bytes: u32) {
        let entry = [u32::from(head).to_le(), bytes.to_le()];
        // SAFETY: in bounds of the area found in `new`; used entries are 4-aligned there.
        unsafe {
            let first = self.used.add(2 + 4 * self.slot(position)).cast::<[u32; 2]>();
            first.write_volatile(entry);
        }
    }

    /// Publishes all entries before `index` to the driver.
    pub fn publish_used(&self, index: u16) {
        self.used_word(1).store(index.to_le(), Ordering::Release);
    }

    /// Returns whether the driver wants an interrupt for the used entries from `old` up to `new`.
    pub fn wants_interrupt(&self, new: u16, old: u16) -> bool {
        // Our index must be visible before the driver's wish is read, or both sides could go to
        // sleep.
        fence(Ordering::SeqCst);
        if self.event_idx {
            let used_event = self.avail_word(2 + usize::from(self.size)).load(Ordering::Relaxed);
            return passes(u16::from_le(used_event), new, old);
        }
        let flags = u16::from_le(self.avail_word(0).load(Ordering::Relaxed));
        flags & AVAIL_NO_INTERRUPT == 0
    }

    /// Enables notifications for entries from `next` on. Returns whether there are some already:
    /// the driver may not have seen the request in time, so check again before sleeping.
    pub fn ask_for_kicks(&self, next: u16) -> bool {
        if self.event_idx {
            self.avail_event().store(next.to_le(), Ordering::Relaxed);
        } else {
            self.used_word(0).store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        self.avail_index() != next
    }

    /// Disables notifications by the driver.
    pub fn refuse_kicks(&self, next: u16) {
        if self.event_idx {
            // There is no flag for this: an event index that the driver has just passed recurs once
            // in 65536 requests, and that one notification is harmless.
            self.avail_event().store(next.wrapping_sub(1).to_le(), Ordering::Relaxed);
        } else {
            self.used_word(0).store(USED_NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }

    fn avail_event(&self) -> &AtomicU16 {
        self.used_word(2 + 4 * usize::from(self.size))
    }
}

/// Reads a descriptor once.
///
/// # Safety
/// `from` is valid for reads of a descriptor; it need not be aligned (indirect tables may not be).
pub unsafe fn read_descriptor(from: *const Descriptor) -> Descriptor {
    // SAFETY: passed on to the caller. The driver may write meanwhile; any bytes are a descriptor.
    let Unaligned(raw) = unsafe { from.cast::<Unaligned>().read_volatile() };
    let raw = u128::from_le(raw);
    Descriptor {
        address: raw as u64,
        bytes: (raw >> 64) as u32,
        flags: (raw >> 96) as u16,
        next: (raw >> 112) as u16,
    }
}

/// A descriptor as one number at any alignment. (An array of bytes would be read byte by byte.)
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned(u128);

const _: () = assert!(size_of::<Unaligned>() == size_of::<Descriptor>());

#[cfg(test)]
mod tests {
    use super::{Descriptor, passes, read_descriptor};

    #[test]
    fn a_descriptor_is_read_wherever_it_lies() {
        let mut bytes = [0u8; 24];
        bytes[3..19].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        // SAFETY: the bytes of a descriptor begin there.
        let read = unsafe { read_descriptor(bytes.as_ptr().add(3).cast::<Descriptor>()) };
        assert_eq!((read.address, read.bytes), (0x0807_0605_0403_0201, 0x0c0b_0a09));
        assert_eq!((read.flags, read.next), (0x0e0d, 0x100f));
    }

    #[test]
    fn an_event_is_passed_once_also_across_the_wrap() {
        assert!(passes(5, 6, 5));
        assert!(!passes(5, 5, 4));
        assert!(passes(0xffff, 0, 0xffff));
        assert!(passes(0xfffe, 1, 0xfff0));
        assert!(!passes(3, 1, 0xfff0));
    }

    #[test]
    fn an_event_just_behind_is_not_passed_by_a_whole_batch() {
        let next: u16 = 100;
        assert!(!passes(next.wrapping_sub(1), next.wrapping_add(128), next));
    }
}
