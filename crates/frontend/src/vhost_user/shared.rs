//! What the control plane and the queues of a device, and the daemon around it, all see: some words
//! and one socket.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use flowstone_block::{Errno, LogBudget, Peer, SectorCount};
use rustix::net::{SendFlags, send};

use super::memory::GuestMemory;
use super::protocol::feature;

/// The changeable state of a device.
#[derive(Debug, Default)]
pub struct DeviceShared {
    capacity: AtomicU64,
    write_through: AtomicBool,
    /// Bits of what has been negotiated.
    features: AtomicU64,
    /// Whether a monitor is connected, and how often one has been.
    is_connected: AtomicBool,
    connections: AtomicU64,
    /// The process that is connected, if one is, and if it is known.
    peer: Mutex<Option<Peer>>,
    /// The guest's memory that it has handed over.
    guest_memory: Mutex<Weak<GuestMemory>>,
    /// The channel on which the monitor hears of configuration changes.
    monitor: Mutex<Option<UnixStream>>,
    /// For what guests and monitors can make us say again and again.
    log: Mutex<LogBudget>,
    watcher: Watcher,
}

/// What a monitor of a disk has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorChange<'a> {
    /// It has connected: this process, if that is known.
    Come(Option<Peer>),
    /// It has gone, for this reason.
    Gone(&'a str),
}

/// Hears of connections, once there is one who does.
#[derive(Default)]
struct Watcher(OnceLock<Box<Watch>>);

type Watch = dyn Fn(MonitorChange<'_>) + Send + Sync;

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watcher(is there: {})", self.0.get().is_some())
    }
}

/// A guest, as its disk sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The process that runs it, unless it is hidden from us (in another PID namespace).
    pub monitor: Option<Peer>,
    /// Memory that the guest has.
    pub memory_bytes: u64,
}

impl DeviceShared {
    /// For a disk of this size.
    pub fn new(capacity: SectorCount) -> Self {
        let shared = Self::default();
        shared.set_capacity(capacity);
        shared
    }

    /// The size that the guest is told.
    pub fn capacity(&self) -> SectorCount {
        SectorCount::new(self.capacity.load(Ordering::Relaxed))
    }

    fn set_capacity(&self, capacity: SectorCount) {
        self.capacity.store(capacity.get(), Ordering::Relaxed);
    }

    /// Returns whether every write must be durable by itself.
    pub fn write_through(&self) -> bool {
        self.write_through.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_through(&self, on: bool) {
        self.write_through.store(on, Ordering::Relaxed);
    }

    /// Names of the features that a guest and we have agreed on; none without a guest.
    pub fn features(&self) -> Vec<&'static str> {
        feature::names(self.features.load(Ordering::Relaxed))
    }

    pub(super) fn set_features(&self, bits: u64) {
        self.features.store(bits, Ordering::Relaxed);
    }

    /// `watcher` hears of all connections from now on, on the thread that serves them: it must not
    /// wait. The first one stays.
    pub fn watch(&self, watcher: impl Fn(MonitorChange<'_>) + Send + Sync + 'static) {
        let _ = self.watcher.0.set(Box::new(watcher));
    }

    fn tell(&self, change: MonitorChange<'_>) {
        self.watcher.0.get().into_iter().for_each(|watcher| watcher(change));
    }

    /// Returns whether a monitor is connected.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// How many have connected so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// A monitor has connected: the process `peer`, if that is known.
    pub(super) fn connected(&self, peer: Option<Peer>) {
        *self.peer() = peer;
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
        self.tell(MonitorChange::Come(peer));
    }

    /// The monitor has gone.
    pub(super) fn disconnected(&self, reason: &str) {
        self.is_connected.store(false, Ordering::Relaxed);
        *self.peer() = None;
        self.tell(MonitorChange::Gone(reason));
    }

    /// The guest that uses the disk, if one does.
    pub fn guest(&self) -> Option<Guest> {
        let memory_bytes = self.guest_memory().map_or(0, |memory| memory.bytes());
        let monitor = *self.peer();
        (memory_bytes > 0).then_some(Guest { monitor, memory_bytes })
    }

    fn peer(&self) -> MutexGuard<'_, Option<Peer>> {
        self.peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory of the guest that uses the disk, while it does.
    pub fn guest_memory(&self) -> Option<Arc<GuestMemory>> {
        self.memory_of_guest().upgrade()
    }

    /// It is not kept from being unmapped.
    pub(super) fn set_guest_memory(&self, memory: &Arc<GuestMemory>) {
        *self.memory_of_guest() = Arc::downgrade(memory);
    }

    fn memory_of_guest(&self) -> MutexGuard<'_, Weak<GuestMemory>> {
        self.guest_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_monitor(&self, channel: Option<UnixStream>) {
        *self.monitor() = channel;
    }

    /// Asks whether to write a line that a guest or a monitor can cause as often as it likes.
    /// `Some` allows it, and says how many such lines were kept back since the last one, if any
    /// were.
    pub fn may_log(&self) -> Option<Option<NonZeroU64>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).spend()
    }

    fn monitor(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the guest to look at the disk's size. Says whether a monitor was there to be told; if
    /// not, the next one is.
    pub fn announce_capacity(&self, capacity: SectorCount) -> io::Result<bool> {
        self.set_capacity(capacity);
        let channel = self.monitor();
        let Some(stream) = channel.as_ref() else { return Ok(false) };
        // A monitor that does not read must not hold us up; it has a message waiting anyway.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match send(stream, &config_change_message(), flags) {
            Ok(_) | Err(Errno::AGAIN) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// VHOST_USER_BACKEND_CONFIG_CHANGE_MSG: no payload, no reply wanted. Crate `vhost` can receive
/// this message but not send it.
fn config_change_message() -> [u8; 12] {
    const CONFIG_CHANGE: u32 = 2;
    const PROTOCOL_VERSION: u32 = 1;
    let mut message = [0; 12];
    message[0..4].copy_from_slice(&CONFIG_CHANGE.to_ne_bytes());
    message[4..8].copy_from_slice(&PROTOCOL_VERSION.to_ne_bytes());
    message
}
