//! A ring with request slots: requests go in, completions come out.
//!
//! It matches used heads with their requests. The client decides when to kick, sleep or give up.

use std::collections::HashMap;

use super::buffers::Buffers;
use super::{ClientOptions, Completion, Negotiated, Request, Ring, Shape, Ticket};
use crate::driver::{Head, Memory, QueueOptions};
use crate::virtio::{F_EVENT_IDX, F_INDIRECT_DESC};
use crate::{Error, Result};

/// A ring and its request slots.
#[derive(Debug)]
pub(super) struct RequestQueue {
    pub(super) ring: Ring,
    slots: Vec<Buffers>,
    idle: Vec<usize>,
    busy: HashMap<Head, Pending>,
    /// The index from which a backend resumes after an orderly stop.
    pub(super) stopped_at: Option<u16>,
}

#[derive(Debug)]
struct Pending {
    slot: usize,
    ticket: Ticket,
    out_bytes: usize,
}

impl RequestQueue {
    /// Allocates a ring and its slots.
    pub(super) fn new(
        memory: &Memory,
        options: &ClientOptions,
        negotiated: &Negotiated,
    ) -> Result<Self> {
        let shape = QueueOptions {
            size: options.queue_size,
            event_idx: negotiated.has(F_EVENT_IDX),
            indirect: negotiated.has(F_INDIRECT_DESC),
        };
        let slots = (0..options.slots)
            .map(|_| Buffers::new(memory, options.slot_bytes))
            .collect::<Result<_>>()?;
        let idle = (0..options.slots).rev().collect();
        let ring = Ring::new(memory, shape)?;
        Ok(RequestQueue { ring, slots, idle, busy: HashMap::new(), stopped_at: None })
    }

    /// Adds a request and publishes it.
    pub(super) fn submit(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        shape: Shape,
    ) -> Result<()> {
        let full = || Error::Misuse("all request slots of the queue are in flight".into());
        let slot = *self.idle.last().ok_or_else(full)?;
        let chain = self.slots[slot].load(request, shape)?;
        let head = self.ring.queue.add(&chain)?;
        self.ring.queue.publish();
        self.idle.pop();
        self.busy.insert(head, Pending { slot, ticket, out_bytes: request.out.len() });
        Ok(())
    }

    /// Returns the next completion, if any.
    pub(super) fn poll(&mut self) -> Result<Option<Completion>> {
        let Some(used) = self.ring.queue.pop()? else {
            return Ok(None);
        };
        let stray = || Error::Misuse(format!("used head {} is not a request", used.head.0));
        let pending = self.busy.remove(&used.head).ok_or_else(stray)?;
        let buffers = &self.slots[pending.slot];
        self.idle.push(pending.slot);
        Ok(Some(Completion {
            ticket: pending.ticket,
            status: buffers.status(),
            data: buffers.answer(pending.out_bytes),
            written_bytes: used.written_bytes,
        }))
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.busy.len()
    }
}
