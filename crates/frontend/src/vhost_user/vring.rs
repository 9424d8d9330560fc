//! A ring as the monitor has configured it so far, running or not.

use std::fs::{File, read_link};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::mutant;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};

use super::inflight::InflightRegion;
use super::memory::GuestMemory;
use super::protocol::feature;
use super::queue::{CallSlot, QueueParts, VirtQueue};
use super::ring::{RingAddresses, SplitRing};
use super::shared::DeviceShared;
use super::{protocol, ring};

/// Everything a ring needs before it can run, in the order in which monitors send it.
#[derive(Default)]
pub struct Vring {
    /// The ring size.
    pub size: u16,
    /// Index of the next avail entry.
    pub next_avail: u16,
    /// Addresses of the areas.
    pub addresses: Option<RingAddresses>,
    /// Descriptor of the driver's notifications.
    pub kick: Option<Arc<File>>,
    /// Descriptor of our interrupts.
    pub call: Arc<CallSlot>,
    /// Descriptor by which a broken ring is reported.
    pub error: Option<Arc<File>>,
    /// The monitor has enabled the ring.
    pub enabled: bool,
    /// A runner has it.
    pub running: bool,
    /// Its driver has broken it.
    pub fault: Arc<AtomicBool>,
}

/// The parts that all rings of a device share.
pub struct DeviceParts<'device> {
    pub memory: &'device Arc<GuestMemory>,
    pub features: u64,
    pub inflight: Option<&'device Arc<InflightRegion>>,
    pub shared: &'device Arc<DeviceShared>,
    pub readonly: bool,
    pub discards: bool,
    pub zeroes_are_written: bool,
    pub id: [u8; protocol::ID_BYTES],
}

impl Vring {
    /// Returns whether it is completely configured and not running yet.
    pub fn is_ready(&self) -> bool {
        let whole = self.kick.is_some() && self.addresses.is_some();
        self.enabled && !self.running && whole && !self.fault.load(Ordering::Relaxed)
    }

    /// Resets the ring's run state; a driver that sets it up again starts afresh.
    pub fn reset(&mut self) {
        self.kick = None;
        self.fault = Arc::default();
    }

    /// Marks the ring broken until the driver resets it, and tells the monitor.
    pub fn fail(&self) {
        self.fault.store(true, Ordering::Relaxed);
        if let Some(error) = &self.error {
            let _ = rustix::io::write(&**error, &1u64.to_ne_bytes());
        }
    }

    /// Builds the queue, ready to run.
    pub fn build(&self, index: usize, device: &DeviceParts<'_>) -> io::Result<VirtQueue> {
        let ring = self
            .build_ring(device)
            .map_err(|bad| io::Error::other(format!("queue {index} has a bad ring: {bad:?}")))?;
        let inflight = device.inflight.and_then(|region| region.log(index, self.size));
        let kick = self.kick.as_ref().ok_or_else(|| io::Error::other("a ring without a kick"))?;
        Ok(VirtQueue::new(QueueParts {
            ring,
            next_avail: self.next_avail,
            kick: Arc::clone(kick),
            call: Arc::clone(&self.call),
            error: self.error.clone(),
            inflight,
            broken: Arc::clone(&self.fault),
            shared: Arc::clone(device.shared),
            readonly: device.readonly,
            discards: device.discards,
            zeroes_are_written: device.zeroes_are_written,
            id: device.id,
        }))
    }

    fn build_ring(&self, device: &DeviceParts<'_>) -> Result<SplitRing, ring::BadRing> {
        let event_idx = device.features & feature::EVENT_IDX != 0;
        let addresses = self.addresses.ok_or(ring::BadRing::Unmapped)?;
        SplitRing::new(Arc::clone(device.memory), self.size, event_idx, addresses)
    }
}

/// Makes an eventfd non-blocking, since a queue's thread must never block. Other files are refused:
/// files and pipes may be readable forever, and a file's server may never answer.
pub fn never_blocking(event: File) -> io::Result<File> {
    // Its file type is shared with other nameless objects, such as an epoll set, which polls the
    // files in it.
    let is_event = match read_link(format!("/proc/self/fd/{}", event.as_raw_fd())) {
        Ok(kind) => kind == Path::new("anon_inode:[eventfd]"),
        // Without /proc only the file type is known.
        Err(_) => FileType::from_raw_mode(fstat(&event)?.st_mode) == FileType::Unknown,
    };
    if !is_event && !mutant("frontend.vring.takes-any-descriptor") {
        let why = "a notification descriptor is no eventfd";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    fcntl_setfl(&event, fcntl_getfl(&event)? | OFlags::NONBLOCK)?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    /// An epoll set has the file type of an eventfd. Polling it polls its members, which may
    /// include a file whose server never answers: that would block the poller and all its disks.
    #[test]
    fn a_set_of_descriptors_is_no_notification() {
        let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        assert!(never_blocking(File::from(set)).is_err());
    }

    /// A kick descriptor that is always readable kept a thread awake.
    #[test]
    fn what_is_no_eventfd_is_no_notification() {
        let socket = std::os::fd::OwnedFd::from(UnixStream::pair().unwrap().0);
        let zero = File::open("/dev/zero").unwrap();
        for file in [zero, tempfile::tempfile().unwrap(), File::from(socket)] {
            let why = never_blocking(file).unwrap_err().to_string();
            assert!(why.contains("no eventfd"), "{why}");
        }
        let event = never_blocking(File::from(eventfd(5, EventfdFlags::CLOEXEC).unwrap())).unwrap();
        assert_eq!(rustix::io::read(&event, &mut [0; 8]), Ok(8));
        assert!(rustix::io::read(&event, &mut [0; 8]).is_err(), "it waits");
    }
}
