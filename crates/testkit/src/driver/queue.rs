//! The driver side of a split virtqueue.
//!
//! Chains are added to the available ring, become visible with `publish`, and are returned by
//! `pop`. The driver's state (free descriptors, chains in flight, ring positions) is private and
//! never read back from shared memory, so a backend that returns a chain twice, or one that was
//! never sent, is detected. The content of the buffers is not interpreted.
//!
//! Two kinds of chain: `add` takes descriptors and `pop` frees them; `prepare` writes a chain once
//! and `send` reuses it, at the cost of one store per request.

use std::sync::atomic::{Ordering, fence};

use super::{Memory, Segment, Slice, need_event};
use crate::virtio::{AVAIL_NO_INTERRUPT, USED_NO_NOTIFY};
use crate::{Error, Result};

/// Rings start on pages of their own, as in a guest.
const PAGE: usize = 4096;
/// Size of one descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;
/// Longest chain that goes into one indirect table: 126 segments, header, status, and slack.
pub(super) const INDIRECT_LEN: usize = 132;

/// The options of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueOptions {
    /// Number of descriptors, a power of two.
    pub size: u16,
    /// Use `used_event` and `avail_event` (only if negotiated).
    pub event_idx: bool,
    /// Put chains of two or more into indirect tables (only if negotiated).
    pub indirect: bool,
}

/// The index of a chain's first descriptor, which names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Head(pub u16);

/// An entry of the used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The completed chain.
    pub head: Head,
    /// Number of bytes that the device reports as written.
    pub written_bytes: u32,
}

/// Addresses of the rings, as in vhost-user messages.
#[derive(Clone, Debug)]
pub struct RingAddresses {
    /// Number of descriptors.
    pub size: u16,
    /// User address of the descriptor table.
    pub descriptors: u64,
    /// User address of the available ring.
    pub avail: u64,
    /// User address of the used ring.
    pub used: u64,
    used_ring: Slice,
}

impl RingAddresses {
    /// Returns the used index in memory, from which a backend resumes after a crash.
    pub fn used_index(&self) -> u16 {
        u16::from_le(self.used_ring.cell16(2).load(Ordering::Acquire))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chain {
    /// No chain starts at this descriptor.
    None,
    /// In flight; its descriptors are freed on completion.
    Added,
    /// Written by `prepare`, not in flight.
    Prepared,
    /// Written by `prepare`, in flight.
    PreparedSent,
}

/// A split virtqueue, as seen by the driver.
#[derive(Debug)]
pub struct DriverQueue {
    pub(super) options: QueueOptions,
    pub(super) descriptors: Slice,
    pub(crate) avail: Slice,
    pub(crate) used: Slice,
    pub(super) tables: Option<Slice>,
    pub(super) free: Vec<u16>,
    chains: Vec<Chain>,
    pub(super) links: Vec<Option<u16>>,
    pub(super) avail_next: u16,
    kicked: u16,
    used_next: u16,
    /// Cached `used.idx`: the device writes that cache line, so it is read once per batch.
    used_seen: u16,
    in_flight: u16,
}

impl DriverQueue {
    /// Allocates an empty queue in `memory`.
    pub fn new(memory: &Memory, options: QueueOptions) -> Result<Self> {
        let size = usize::from(options.size);
        if !options.size.is_power_of_two() {
            return Err(Error::Misuse(format!("queue size {size} is not a power of two")));
        }
        let tables = if options.indirect {
            Some(memory.alloc(size * INDIRECT_LEN * DESCRIPTOR_BYTES, PAGE)?)
        } else {
            None
        };
        Ok(DriverQueue {
            options,
            descriptors: memory.alloc(size * DESCRIPTOR_BYTES, PAGE)?,
            avail: memory.alloc(6 + 2 * size, PAGE)?,
            used: memory.alloc(6 + 8 * size, PAGE)?,
            tables,
            free: (0..options.size).rev().collect(),
            chains: vec![Chain::None; size],
            links: vec![None; size],
            avail_next: 0,
            kicked: 0,
            used_next: 0,
            used_seen: 0,
            in_flight: 0,
        })
    }

    /// Returns its options.
    pub fn options(&self) -> QueueOptions {
        self.options
    }

    /// Returns the addresses of the rings.
    pub fn addresses(&self) -> RingAddresses {
        RingAddresses {
            size: self.options.size,
            descriptors: self.descriptors.user_address(),
            avail: self.avail.user_address(),
            used: self.used.user_address(),
            used_ring: self.used.clone(),
        }
    }

    /// Writes a chain and adds it to the available ring. Not visible before `publish`.
    ///
    /// Fails if there are too few descriptors; nothing is changed then.
    pub fn add(&mut self, chain: &[Segment]) -> Result<Head> {
        let head = self.write_chain(chain)?;
        self.chains[usize::from(head.0)] = Chain::Added;
        self.push(head);
        Ok(head)
    }

    /// Writes a chain that `send` can reuse. Its descriptors are never freed.
    pub fn prepare(&mut self, chain: &[Segment]) -> Result<Head> {
        let head = self.write_chain(chain)?;
        self.chains[usize::from(head.0)] = Chain::Prepared;
        Ok(head)
    }

    /// Adds a prepared chain to the available ring. Not visible before `publish`.
    #[inline]
    pub fn send(&mut self, head: Head) {
        let state = &mut self.chains[usize::from(head.0)];
        assert_eq!(*state, Chain::Prepared, "chain {} is not prepared and at home", head.0);
        *state = Chain::PreparedSent;
        self.push(head);
    }

    /// Makes all added chains visible to the device.
    #[inline]
    pub fn publish(&mut self) {
        self.avail.cell16(2).store(self.avail_next.to_le(), Ordering::Release);
    }

    /// Returns whether the device wants a kick for chains published since the last call.
    #[inline]
    pub fn needs_kick(&mut self) -> bool {
        let (new, old) = (self.avail_next, self.kicked);
        if new == old {
            return false;
        }
        self.kicked = new;
        // The device checks the index after enabling kicks; we check for that after moving the
        // index. Both sides need a full barrier, or both may miss the other.
        fence(Ordering::SeqCst);
        if self.options.event_idx {
            need_event(self.avail_event(), new, old)
        } else {
            self.used_flags() & USED_NO_NOTIFY == 0
        }
    }

    /// Returns whether there is a used entry to pop.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.used_index() != self.used_next
    }

    /// Takes the next used entry. A head that is not in flight is a protocol error.
    #[inline]
    pub fn pop(&mut self) -> Result<Option<Used>> {
        let Some((id, written_bytes)) = self.pop_raw() else {
            return Ok(None);
        };
        let state = self.chains.get(id as usize).copied().unwrap_or(Chain::None);
        match state {
            Chain::PreparedSent => self.chains[id as usize] = Chain::Prepared,
            Chain::Added => {
                self.chains[id as usize] = Chain::None;
                self.release(id as u16);
            }
            Chain::None | Chain::Prepared => {
                return Err(Error::Protocol(format!("used id {id} was not in flight")));
            }
        }
        self.in_flight -= 1;
        Ok(Some(Used { head: Head(id as u16), written_bytes }))
    }

    /// Takes the next used entry unchecked: (id, length).
    #[inline]
    pub fn pop_raw(&mut self) -> Option<(u32, u32)> {
        if self.used_next == self.used_seen {
            self.used_seen = self.used_index();
            if self.used_next == self.used_seen {
                return None;
            }
        }
        let offset = 4 + 8 * usize::from(self.used_next & (self.options.size - 1));
        self.used_next = self.used_next.wrapping_add(1);
        let id = u32::from_le(self.used.cell32(offset).load(Ordering::Relaxed));
        let len = u32::from_le(self.used.cell32(offset + 4).load(Ordering::Relaxed));
        Some((id, len))
    }

    /// Asks for a call at the next used entry. Check `has_used` afterwards: no call is sent for an
    /// entry that was written before the device saw this.
    #[inline]
    pub fn arm_calls(&mut self) {
        if self.options.event_idx {
            self.set_used_event(self.used_next);
        } else {
            self.set_avail_flags(0);
        }
        fence(Ordering::SeqCst);
    }

    /// Disables calls. EVENT_IDX has no "never": the event is set half the index space away, so
    /// this must be repeated now and then.
    #[inline]
    pub fn disarm_calls(&mut self) {
        if self.options.event_idx {
            self.set_used_event(self.used_next.wrapping_add(0x8000));
        } else {
            self.set_avail_flags(AVAIL_NO_INTERRUPT);
        }
    }

    /// Returns the number of chains in flight (raw entries do not count).
    pub fn in_flight(&self) -> u16 {
        self.in_flight
    }

    /// Returns the available index of the next chain.
    pub fn avail_index(&self) -> u16 {
        self.avail_next
    }

    /// Returns `used.idx` as written by the device.
    #[inline]
    pub fn used_index(&self) -> u16 {
        u16::from_le(self.used.cell16(2).load(Ordering::Acquire))
    }

    /// Returns `used.flags` as written by the device.
    #[inline]
    pub fn used_flags(&self) -> u16 {
        u16::from_le(self.used.cell16(0).load(Ordering::Relaxed))
    }

    /// Returns `avail_event` as written by the device.
    #[inline]
    pub fn avail_event(&self) -> u16 {
        let offset = 4 + 8 * usize::from(self.options.size);
        u16::from_le(self.used.cell16(offset).load(Ordering::Relaxed))
    }

    /// Writes `used_event` directly.
    #[inline]
    fn set_used_event(&mut self, event: u16) {
        let offset = 4 + 2 * usize::from(self.options.size);
        self.avail.cell16(offset).store(event.to_le(), Ordering::Relaxed);
    }

    /// Writes `avail.flags` directly.
    #[inline]
    fn set_avail_flags(&mut self, flags: u16) {
        self.avail.cell16(0).store(flags.to_le(), Ordering::Relaxed);
    }

    #[inline]
    fn push(&mut self, head: Head) {
        self.write_avail(head.0);
        self.in_flight += 1;
    }

    #[inline]
    pub(super) fn write_avail(&mut self, head: u16) {
        let offset = 4 + 2 * usize::from(self.avail_next & (self.options.size - 1));
        self.avail.cell16(offset).store(head.to_le(), Ordering::Relaxed);
        self.avail_next = self.avail_next.wrapping_add(1);
    }
}
