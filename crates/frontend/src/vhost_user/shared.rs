//! State shared by a device's control plane, its queues, and the daemon: some words and one socket.

use std::io;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use flowstone_block::{Errno, LogBudget, Metric, Peer, SectorCount, lock};
use rustix::net::{SendFlags, send};

use super::memory::GuestMemory;
use super::protocol::feature;

/// The mutable state of a device.
#[derive(Default)]
pub struct DeviceShared {
    capacity: AtomicU64,
    write_through: AtomicBool,
    /// Negotiated feature bits.
    features: AtomicU64,
    /// A monitor is connected; and the number of connections so far.
    is_connected: AtomicBool,
    connections: AtomicU64,
    /// The connected process, if it is known.
    peer: Mutex<Option<Peer>>,
    /// The guest's memory, as set by the monitor.
    guest_memory: Mutex<Weak<GuestMemory>>,
    /// The channel for announcing configuration changes to the monitor.
    monitor: Mutex<Option<UnixStream>>,
    /// The budget of log lines that guests and monitors can cause at will.
    log: Mutex<LogBudget>,
    /// The callback for connections, once it is set.
    watcher: OnceLock<Box<Watch>>,
}

/// A change of a disk's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorChange<'a> {
    /// A monitor has connected: the process, if it is known.
    Come(Option<Peer>),
    /// The monitor has disconnected, for this reason.
    Gone(&'a str),
}

type Watch = dyn Fn(MonitorChange<'_>) + Send + Sync;

/// The guest of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// The monitor's process, unless it is hidden from us (in another PID namespace).
    pub monitor: Option<Peer>,
    /// The guest's memory in bytes.
    pub memory_bytes: u64,
}

impl DeviceShared {
    /// Metrics of a device.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::gauge("flowstone_disk_connected", "1 if a monitor is connected", |it| {
            f64::from(u8::from(it.is_connected()))
        }),
        Metric::counter("flowstone_disk_connections_total", "Connections of monitors", |it| {
            it.connections() as f64
        }),
        Metric::gauge("flowstone_disk_capacity_bytes", "Size of the disk in the guest", |it| {
            it.capacity().bytes() as f64
        }),
    ];

    /// Makes the state of a disk of size `capacity`.
    pub fn new(capacity: SectorCount) -> Self {
        let shared = Self::default();
        shared.set_capacity(capacity);
        shared
    }

    /// Returns the size that the guest is told.
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

    /// Returns the names of the negotiated features; none without a guest.
    pub fn features(&self) -> Vec<&'static str> {
        feature::names(self.features.load(Ordering::Relaxed))
    }

    pub(super) fn set_features(&self, bits: u64) {
        self.features.store(bits, Ordering::Relaxed);
    }

    /// Registers `watcher` for connections; it is called on the thread that serves them and must
    /// not block. A second one is ignored.
    pub fn watch(&self, watcher: impl Fn(MonitorChange<'_>) + Send + Sync + 'static) {
        let _ = self.watcher.set(Box::new(watcher));
    }

    fn tell(&self, change: MonitorChange<'_>) {
        self.watcher.get().into_iter().for_each(|watcher| watcher(change));
    }

    /// Returns whether a monitor is connected.
    pub fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    /// Returns the number of connections so far.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Records that a monitor has connected: the process `peer`, if it is known.
    pub(super) fn connected(&self, peer: Option<Peer>) {
        *lock(&self.peer) = peer;
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.is_connected.store(true, Ordering::Relaxed);
        self.tell(MonitorChange::Come(peer));
    }

    /// Records that the monitor has disconnected.
    pub(super) fn disconnected(&self, reason: &str) {
        self.is_connected.store(false, Ordering::Relaxed);
        *lock(&self.peer) = None;
        self.tell(MonitorChange::Gone(reason));
    }

    /// Returns the guest that uses the disk, if any.
    pub fn guest(&self) -> Option<Guest> {
        let memory_bytes = self.guest_memory().map_or(0, |memory| memory.bytes());
        let monitor = *lock(&self.peer);
        (memory_bytes > 0).then_some(Guest { monitor, memory_bytes })
    }

    /// Returns the memory of the guest that uses the disk, if any.
    pub fn guest_memory(&self) -> Option<Arc<GuestMemory>> {
        lock(&self.guest_memory).upgrade()
    }

    /// Sets the guest's memory. Holds it weakly, so that it can be unmapped.
    pub(super) fn set_guest_memory(&self, memory: &Arc<GuestMemory>) {
        *lock(&self.guest_memory) = Arc::downgrade(memory);
    }

    pub(super) fn set_monitor(&self, channel: Option<UnixStream>) {
        *lock(&self.monitor) = channel;
    }

    /// Asks for a log line that a guest or a monitor can cause at will. `Some` allows it, with the
    /// number of such lines suppressed since the last one, if any.
    pub fn may_log(&self) -> Option<Option<NonZeroU64>> {
        lock(&self.log).spend()
    }

    /// Tells the guest to reread the disk's size. Returns whether a monitor was there to be told;
    /// if not, the next one is.
    pub fn announce_capacity(&self, capacity: SectorCount) -> io::Result<bool> {
        self.set_capacity(capacity);
        let channel = lock(&self.monitor);
        let Some(stream) = channel.as_ref() else { return Ok(false) };
        // A monitor that does not read must not block us; it then has a message waiting anyway.
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
