//! The client: a session, guest memory, rings and request buffers.
//!
//! Requests are submitted to a queue and complete in any order. Nothing is lost by `reconnect`:
//! requests in flight when a backend died are completed by the next one. Waiting relies on call
//! signals only, so a missing one is detected.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::buffers::Buffers;
use super::completion::{Completion, Ticket};
use super::event::wait_readable;
use super::request_queue::RequestQueue;
use super::{
    BlkConfig, ClientOptions, InflightArea, Negotiated, ProtocolFeatures, Request, Ring, Session,
    Shape,
};
use crate::driver::{Memory, MemoryLayout};
use crate::{Error, Result};

/// A vhost-user-blk front end.
#[derive(Debug)]
pub struct Client {
    options: ClientOptions,
    session: Option<Session>,
    negotiated: Negotiated,
    config: BlkConfig,
    memory: Memory,
    inflight: Option<InflightArea>,
    queues: Vec<RequestQueue>,
    next_ticket: u64,
}

impl Client {
    /// Connects, negotiates and starts all rings.
    pub fn connect(options: ClientOptions) -> Result<Self> {
        let mut client = Self::negotiate(options)?;
        client.start()?;
        Ok(client)
    }

    /// Connects and negotiates, but leaves the rings for `start`.
    pub fn negotiate(options: ClientOptions) -> Result<Self> {
        let mut session = Session::open(&options)?;
        let negotiated = *session.negotiated();
        let config = read_config(&mut session)?;
        if options.queues as u64 > negotiated.queues_max {
            let (want, most) = (options.queues, negotiated.queues_max);
            return Err(Error::Misuse(format!("{want} queues wanted, the backend serves {most}")));
        }
        let memory = Memory::new(memory_layout(&options))?;
        let queues = (0..options.queues)
            .map(|_| RequestQueue::new(&memory, &options, &negotiated))
            .collect::<Result<_>>()?;
        let Negotiated { features, protocol, .. } = negotiated;
        Ok(Client {
            // Those of `reconnect`.
            options: ClientOptions { features, protocol, ..options },
            session: Some(session),
            negotiated,
            config,
            memory,
            inflight: None,
            queues,
            next_ticket: 0,
        })
    }

    /// Shares memory and starts all rings: at 0, or where they were stopped, or, after a crash of
    /// the backend, at the used index in memory, as QEMU does.
    pub fn start(&mut self) -> Result<()> {
        let session = self.session.as_mut().ok_or_else(not_connected)?;
        let rings = self.queues.iter_mut().map(|queue| {
            let used = queue.ring.queue.used_index();
            let base = queue.stopped_at.take().unwrap_or(used);
            (queue.ring.share(), base)
        });
        let rings: Vec<_> = rings.collect();
        session.start_all(&self.options, &self.memory, &mut self.inflight, &rings)
    }

    /// Stops all rings (GET_VRING_BASE) and returns their positions, from which `start` resumes.
    pub fn stop(&mut self) -> Result<Vec<u16>> {
        let session = self.session.as_mut().ok_or_else(not_connected)?;
        let mut bases = Vec::with_capacity(self.queues.len());
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let base = session.stop_ring(index)?;
            queue.stopped_at = Some(base);
            bases.push(base);
        }
        Ok(bases)
    }

    /// Closes the connection. Memory, rings and the inflight region are kept for `reconnect`.
    pub fn disconnect(&mut self) {
        self.session = None;
    }

    /// Connects again, to the same socket and with the same features, and starts the rings.
    ///
    /// Requests in flight stay in flight; the new backend has to complete them.
    pub fn reconnect(&mut self) -> Result<()> {
        self.disconnect();
        let mut session = Session::open(&self.options)?;
        if session.negotiated().features != self.negotiated.features {
            let (new, old) = (session.negotiated().features, self.negotiated.features);
            return Err(Error::Protocol(format!(
                "features {new:#x} after reconnect, had {old:#x}"
            )));
        }
        self.config = read_config(&mut session)?;
        self.session = Some(session);
        self.start()
    }

    /// Returns the negotiated features.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the configuration space as of the last connect or `refresh_config`.
    pub fn config(&self) -> &BlkConfig {
        &self.config
    }

    /// Reads the configuration space again.
    pub fn refresh_config(&mut self) -> Result<&BlkConfig> {
        self.config = self.session()?.config()?;
        Ok(&self.config)
    }

    /// Turns the write cache on or off.
    pub fn set_wce(&mut self, on: bool) -> Result<()> {
        self.session()?.set_wce(on)
    }

    /// Waits for the backend to announce a configuration change.
    pub fn wait_config_change(&mut self, timeout: Duration) -> Result<bool> {
        let missing = || Error::Misuse("BACKEND_REQ was not negotiated".into());
        self.session()?.backend_channel().ok_or_else(missing)?.wait_config_change(timeout)
    }

    /// Returns the session, for messages without a method here.
    pub fn session(&mut self) -> Result<&mut Session> {
        self.session.as_mut().ok_or_else(not_connected)
    }

    /// Returns the guest memory, for a test's own buffers.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns a ring, for raw entries and inspection.
    pub fn ring(&mut self, queue: usize) -> &mut Ring {
        &mut self.queues[queue].ring
    }

    /// Returns the inflight region, if negotiated and started.
    pub fn inflight(&self) -> Option<&InflightArea> {
        self.inflight.as_ref()
    }

    /// Sets the layout of payloads of later requests.
    pub fn set_shape(&mut self, shape: Shape) {
        self.options.shape = shape;
    }

    /// Changes the longest wait for a completion.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.options.timeout_ms = timeout.as_millis() as u64;
    }

    /// Adds a request to a queue and publishes it, without a kick.
    pub fn submit(&mut self, queue: usize, request: &Request<'_>) -> Result<Ticket> {
        let ticket = Ticket(self.next_ticket);
        let shape = self.options.shape;
        self.queues[queue].submit(ticket, request, shape)?;
        self.next_ticket += 1;
        Ok(ticket)
    }

    /// Kicks if the device asks for it. Returns whether it did.
    pub fn notify(&mut self, queue: usize) -> Result<bool> {
        self.queues[queue].ring.notify()
    }

    /// Kicks unconditionally.
    pub fn kick(&self, queue: usize) -> Result<()> {
        self.queues[queue].ring.kick()
    }

    /// Returns the number of a queue's requests in flight.
    pub fn in_flight(&self, queue: usize) -> usize {
        self.queues[queue].in_flight()
    }

    /// Returns the next completion of a queue, if any.
    pub fn poll(&mut self, queue: usize) -> Result<Option<Completion>> {
        self.queues[queue].poll()
    }

    /// Sleeps until a queue has a completion.
    ///
    /// A completion in the ring without a call is `Error::LostCall`.
    pub fn wait(&mut self, queue: usize) -> Result<Completion> {
        let deadline = Instant::now() + Duration::from_millis(self.options.timeout_ms);
        loop {
            self.queues[queue].ring.queue.arm_calls();
            if let Some(completion) = self.poll(queue)? {
                return Ok(completion);
            }
            if !self.sleep(queue, deadline)? {
                return Err(self.explain_silence(queue));
            }
        }
    }

    /// Waits for all requests in flight on a queue; returns the completions in order of arrival.
    pub fn drain(&mut self, queue: usize) -> Result<Vec<Completion>> {
        let mut all = Vec::with_capacity(self.in_flight(queue));
        while self.in_flight(queue) > 0 {
            all.push(self.wait(queue)?);
        }
        Ok(all)
    }

    /// Submits, kicks and waits on one queue. No other requests may be in flight there.
    pub fn request_on(&mut self, queue: usize, request: &Request<'_>) -> Result<Completion> {
        let ticket = self.submit(queue, request)?;
        self.notify(queue)?;
        let completion = self.wait(queue)?;
        if completion.ticket == ticket {
            return Ok(completion);
        }
        Err(Error::Misuse("blocking call while other requests are in flight".into()))
    }

    /// Sleeps until a call. `false` on timeout; an error if the backend is gone.
    fn sleep(&mut self, queue: usize, deadline: Instant) -> Result<bool> {
        let ring = &self.queues[queue].ring;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = vec![PollFd::new(&ring.share().call, PollFlags::IN)];
        fds.extend(self.session.as_ref().map(Session::hangup_fd));
        if !wait_readable(&mut fds, left)? {
            return Ok(false);
        }
        let called = ring.take_calls() > 0;
        let gone = self.session.as_ref().is_some_and(Session::is_closed);
        if gone && !called && !ring.queue.has_used() {
            return Err(Error::Disconnected(format!("waiting for queue {queue}")));
        }
        Ok(true)
    }

    fn explain_silence(&self, queue: usize) -> Error {
        if self.queues[queue].ring.queue.has_used() {
            return Error::LostCall { queue };
        }
        let pending = self.in_flight(queue);
        let action = format!("waiting for {pending} requests on queue {queue}");
        Error::Timeout { action, timeout_ms: self.options.timeout_ms }
    }
}

fn not_connected() -> Error {
    Error::Misuse("the client is not connected".into())
}

fn read_config(session: &mut Session) -> Result<BlkConfig> {
    if session.negotiated().protocol.contains(ProtocolFeatures::CONFIG) {
        session.config()
    } else {
        Ok(BlkConfig::default())
    }
}

/// Returns a layout with room for all rings with their indirect tables, and all slots; unused pages
/// take no memory.
fn memory_layout(options: &ClientOptions) -> MemoryLayout {
    let rings = usize::from(options.queue_size) * 4096 + 64 * 1024;
    let slots = options.slots * Buffers::footprint(options.slot_bytes);
    let spare = 4 << 20;
    let total = options.queues * (rings + slots) + spare;
    MemoryLayout {
        regions: options.memory_regions,
        region_bytes: total.div_ceil(options.memory_regions)
            + Buffers::footprint(options.slot_bytes),
        gap_bytes: options.memory_gap_bytes,
    }
}
