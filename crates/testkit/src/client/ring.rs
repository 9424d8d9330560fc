//! A queue together with the eventfds that make it sound.
//!
//! A ring can be driven by one thread while another one hands its `RingShare` to a new backend:
//! the shared memory and the eventfds are all a backend needs to know.

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

/// What a backend is told about a ring.
#[derive(Debug)]
pub struct RingShare {
    /// Where the ring lies in memory.
    pub addresses: RingAddresses,
    /// The driver signals it after adding buffers.
    pub kick: Event,
    /// The device signals it after using buffers.
    pub call: Event,
    /// The device signals it when it gives up on the ring.
    pub err: Event,
}

impl Ring {
    /// Lays out an empty ring.
    pub fn new(memory: &Memory, options: QueueOptions) -> Result<Self> {
        let queue = DriverQueue::new(memory, options)?;
        let addresses = queue.addresses();
        let (kick, call, err) = (Event::new()?, Event::new()?, Event::new()?);
        Ok(Ring { queue, share: RingShare { addresses, kick, call, err } })
    }

    /// What a backend has to be told.
    pub fn share(&self) -> &RingShare {
        &self.share
    }

    /// Publishes what was added and kicks if the device wants it. True if it was kicked.
    #[inline]
    pub fn notify(&mut self) -> Result<bool> {
        self.queue.publish();
        let wanted = self.queue.needs_kick();
        if wanted {
            self.share.kick.signal()?;
        }
        Ok(wanted)
    }

    /// Kicks, wanted or not.
    pub fn kick(&self) -> Result<()> {
        self.share.kick.signal()
    }

    /// Takes the calls signalled so far; 0 when there were none.
    pub fn take_calls(&self) -> u64 {
        self.share.call.take()
    }

    /// Takes the error signals seen so far; 0 when there were none.
    pub fn take_errors(&self) -> u64 {
        self.share.err.take()
    }
}

impl RingShare {
    /// The same ring for another owner.
    pub fn try_clone(&self) -> Result<Self> {
        Ok(RingShare {
            addresses: self.addresses.clone(),
            kick: self.kick.try_clone()?,
            call: self.call.try_clone()?,
            err: self.err.try_clone()?,
        })
    }
}
