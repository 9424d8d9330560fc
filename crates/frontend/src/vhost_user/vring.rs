//! A ring as the monitor has configured it so far, running or not.

use std::fs::{File, read_link};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flowstone_block::mutated;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};

use super::memory::GuestMemory;
use super::queue::CallSlot;
use super::ring::{BadRing, RingAddresses, SplitRing};

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

    /// Returns the ring in the guest's memory.
    pub fn ring(&self, memory: &Arc<GuestMemory>, event_idx: bool) -> Result<SplitRing, BadRing> {
        let addresses = self.addresses.ok_or(BadRing::Unmapped)?;
        SplitRing::new(Arc::clone(memory), self.size, event_idx, addresses)
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
    let is_event = mutated("frontend.vring.takes-any-descriptor", is_event, true);
    if !is_event {
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
