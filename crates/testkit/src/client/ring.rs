//! A queue together with its eventfds.
//!
//! A ring can be driven by one thread while another one passes its `RingShare` to a new backend:
//! the shared memory and the eventfds are all that a backend needs.

use super::Event;
use crate::Result;
use crate::driver::{DriverQueue, Memory, QueueOptions, RingAddresses};

/// A driver's queue and its three eventfds.
#[derive(Debug)]
pub struct Ring {
    /// The virtqueue.
    pub queue: DriverQueue,
    share: RingShare,
}

/// The part of a ring that is passed to a backend.
#[derive(Debug)]
pub struct RingShare {
    /// Addresses of the ring in memory.
    pub addresses: RingAddresses,
    /// Signalled by the driver after adding buffers.
    pub kick: Event,
    /// Signalled by the device after using buffers.
    pub call: Event,
    /// Signalled by the device when it stops the ring because of an error.
    pub err: Event,
}

impl Ring {
    /// Allocates an empty ring.
    pub fn new(memory: &Memory, options: QueueOptions) -> Result<Self> {
        let queue = DriverQueue::new(memory, options)?;
        let addresses = queue.addresses();
        let (kick, call, err) = (Event::new()?, Event::new()?, Event::new()?);
        Ok(Ring { queue, share: RingShare { addresses, kick, call, err } })
    }

    /// Returns the part that is passed to a backend.
    pub fn share(&self) -> &RingShare {
        &self.share
    }

    /// Publishes added chains and kicks if the device asks for it. Returns whether it kicked.
    #[inline]
    pub fn notify(&mut self) -> Result<bool> {
        self.queue.publish();
        let wanted = self.queue.needs_kick();
        if wanted {
            self.share.kick.signal()?;
        }
        Ok(wanted)
    }

    /// Kicks unconditionally.
    pub fn kick(&self) -> Result<()> {
        self.share.kick.signal()
    }

    /// Returns and resets the count of calls.
    pub fn take_calls(&self) -> u64 {
        self.share.call.take()
    }

    /// Returns and resets the count of error signals.
    pub fn take_errors(&self) -> u64 {
        self.share.err.take()
    }
}

impl RingShare {
    /// Returns another handle of the same ring.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(RingShare {
            addresses: self.addresses.clone(),
            kick: self.kick.try_clone()?,
            call: self.call.try_clone()?,
            err: self.err.try_clone()?,
        })
    }
}
