//! One connection to a backend: the vhost-user protocol, message by message.
//!
//! A session owns only the socket: memory and rings belong to the caller, so they survive it. Every
//! message is limited by the session's timeout, and with REPLY_ACK every refusal is an error of the
//! message that caused it. Requests are not handled here.

use std::fmt;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use super::config::CONFIG_BYTES;
use super::deadline::Deadline;
use super::{
    BackendChannel, BlkConfig, ClientOptions, InflightArea, MemoryMessage, ProtocolFeatures,
    RingShare, WCE_OFFSET,
};
use crate::driver::{Memory, Region};
use crate::virtio::F_PROTOCOL_FEATURES;
use crate::{Error, Result};

/// The result of negotiation.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// Acknowledged virtio features.
    pub features: u64,
    /// Acknowledged protocol features.
    pub protocol: ProtocolFeatures,
    /// Queues that the backend supports (1 without MQ).
    pub queues_max: u64,
}

impl Negotiated {
    /// Returns whether all of these virtio features were acknowledged.
    pub fn has(&self, features: u64) -> bool {
        self.features & features == features
    }
}

/// A negotiated connection.
pub struct Session {
    frontend: Frontend,
    socket: UnixStream,
    deadline: Deadline,
    timeout: Duration,
    negotiated: Negotiated,
    channel: Option<BackendChannel>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("negotiated", &self.negotiated).finish_non_exhaustive()
    }
}

impl Session {
    /// Connects and negotiates. No memory is shared and no ring started yet.
    pub fn open(options: &ClientOptions) -> Result<Self> {
        let socket = connect(options)?;
        let clone = || socket.try_clone().map_err(|e| Error::io("clone the socket", e));
        let deadline = Deadline::new(clone()?)?;
        let frontend = Frontend::from_stream(clone()?, 0x100);
        let protocol = ProtocolFeatures::empty();
        let negotiated = Negotiated { features: 0, protocol, queues_max: 1 };
        let timeout = Duration::from_millis(options.timeout_ms);
        let channel = None;
        let mut session = Session { frontend, socket, deadline, timeout, negotiated, channel };
        session.negotiate(options)?;
        Ok(session)
    }

    /// Returns the negotiated features.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Returns the channel for messages from the backend, if negotiated.
    pub fn backend_channel(&mut self) -> Option<&mut BackendChannel> {
        self.channel.as_mut()
    }

    /// Sends a message without a method here, with the session's error handling.
    pub fn message<T>(
        &mut self,
        action: &str,
        send: impl FnOnce(&mut Frontend) -> vhost::Result<T>,
    ) -> Result<T> {
        self.deadline.arm(self.timeout);
        let answer = send(&mut self.frontend);
        self.deadline.disarm();
        match answer {
            Ok(answer) => Ok(answer),
            Err(_) if self.deadline.fired() => {
                let timeout_ms = self.timeout.as_millis() as u64;
                Err(Error::Timeout { action: action.into(), timeout_ms })
            }
            Err(_) if self.is_closed() => Err(Error::Disconnected(action.into())),
            Err(source) => Err(Error::Vhost { action: action.into(), source }),
        }
    }

    /// Returns whether the backend has closed the connection.
    pub fn is_closed(&self) -> bool {
        use rustix::net::RecvFlags;
        let mut byte = [0_u8];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut byte, flags) {
            Ok((got, _)) => got == 0,
            Err(rustix::io::Errno::AGAIN) => false,
            Err(_) => true,
        }
    }

    /// Returns the first `bytes` of the configuration space.
    pub fn config_bytes(&mut self, bytes: u32) -> Result<Vec<u8>> {
        let (filler, none) = (vec![0; bytes as usize], VhostUserConfigFlags::empty());
        self.message("GET_CONFIG", |f| f.get_config(0, bytes, none, &filler)).map(|(_, data)| data)
    }

    /// Returns the configuration space, decoded.
    pub fn config(&mut self) -> Result<BlkConfig> {
        Ok(BlkConfig::decode(&self.config_bytes(CONFIG_BYTES)?))
    }

    /// Writes to the configuration space as a driver would.
    pub fn set_config(&mut self, offset: u32, data: &[u8]) -> Result<()> {
        // A driver's write has type 0 in the specification and in QEMU; the wire crate's WRITABLE
        // is their type of a migration.
        let flags = VhostUserConfigFlags::empty();
        self.message("SET_CONFIG", |f| f.set_config(offset, flags, data))
    }

    /// Turns the write cache on or off, like `echo "write through" > cache_type` in a guest.
    pub fn set_wce(&mut self, on: bool) -> Result<()> {
        self.set_config(WCE_OFFSET, &[u8::from(on)])
    }

    /// Acknowledges the features again, as at every start of a device.
    pub fn set_features(&mut self) -> Result<()> {
        let features = self.negotiated.features;
        self.message("SET_FEATURES", |f| f.set_features(features))
    }

    /// Announces guest memory to the backend.
    pub fn share_memory(&mut self, memory: &Memory, how: MemoryMessage) -> Result<()> {
        let regions = wire_regions(memory);
        match how {
            MemoryMessage::Table => {
                self.message("SET_MEM_TABLE", |f| f.set_mem_table(&regions)).map(drop)
            }
            MemoryMessage::AddRegion => regions.iter().try_for_each(|region| {
                self.message("ADD_MEM_REG", |f| f.add_mem_region(region)).map(drop)
            }),
        }
    }

    /// Requests an inflight region from the backend.
    pub fn get_inflight(&mut self, queues: u16, queue_size: u16) -> Result<InflightArea> {
        let wish = VhostUserInflight::new(0, 0, queues, queue_size);
        let (info, file) = self.message("GET_INFLIGHT_FD", |f| f.get_inflight_fd(&wish))?;
        Ok(InflightArea { info, file })
    }

    /// Passes an inflight region to the backend, its own or its predecessor's.
    pub fn set_inflight(&mut self, area: &InflightArea) -> Result<()> {
        let fd = area.file.as_raw_fd();
        self.message("SET_INFLIGHT_FD", |f| f.set_inflight_fd(&area.info, fd))
    }

    /// Configures a ring and enables it, in QEMU's order. The backend begins at entry `base`.
    pub fn start_ring(&mut self, index: usize, ring: &RingShare, base: u16) -> Result<()> {
        let addresses = VringConfigData {
            queue_max_size: ring.addresses.size,
            queue_size: ring.addresses.size,
            flags: 0,
            desc_table_addr: ring.addresses.descriptors,
            used_ring_addr: ring.addresses.used,
            avail_ring_addr: ring.addresses.avail,
            log_addr: None,
        };
        let (kick, call, err) = (ring.kick.to_wire()?, ring.call.to_wire()?, ring.err.to_wire()?);
        let size = ring.addresses.size;
        self.message("SET_VRING_NUM", |f| f.set_vring_num(index, size))?;
        self.message("SET_VRING_BASE", |f| f.set_vring_base(index, base))?;
        self.message("SET_VRING_ADDR", |f| f.set_vring_addr(index, &addresses))?;
        self.message("SET_VRING_ERR", |f| f.set_vring_err(index, &err))?;
        // The kick starts the ring, so the call must be set before it (QEMU sends one at init).
        self.message("SET_VRING_CALL", |f| f.set_vring_call(index, &call))?;
        self.message("SET_VRING_KICK", |f| f.set_vring_kick(index, &kick))?;
        self.enable_ring(index, true)
    }

    /// Hands memory, inflight region and rings over, in QEMU's order. Each ring begins at its base.
    pub(crate) fn start_all(
        &mut self,
        options: &ClientOptions,
        memory: &Memory,
        inflight: &mut Option<InflightArea>,
        rings: &[(&RingShare, u16)],
    ) -> Result<()> {
        if self.negotiated.protocol.contains(ProtocolFeatures::INFLIGHT_SHMFD) {
            if inflight.is_none() {
                let size = rings[0].0.addresses.size;
                *inflight = Some(self.get_inflight(rings.len() as u16, size)?);
            }
            self.set_inflight(inflight.as_ref().expect("filled above"))?;
        }
        // Sent again after the inflight region.
        self.set_features()?;
        self.share_memory(memory, options.memory_message)?;
        for (index, (ring, base)) in rings.iter().enumerate() {
            self.start_ring(index, ring, *base)?;
            if options.kick_on_start {
                ring.kick.signal()?;
            }
        }
        Ok(())
    }

    /// Enables or disables a configured ring.
    pub fn enable_ring(&mut self, index: usize, on: bool) -> Result<()> {
        if !self.negotiated.has(F_PROTOCOL_FEATURES) {
            return Ok(()); // Without protocol features rings start enabled.
        }
        self.message("SET_VRING_ENABLE", |f| f.set_vring_enable(index, on))
    }

    /// Stops a ring and returns the index of the next entry.
    pub fn stop_ring(&mut self, index: usize) -> Result<u16> {
        let base = self.message("GET_VRING_BASE", |f| f.get_vring_base(index))?;
        u16::try_from(base).map_err(|_| Error::Protocol(format!("GET_VRING_BASE says {base}")))
    }

    fn negotiate(&mut self, options: &ClientOptions) -> Result<()> {
        self.message("SET_OWNER", |f| f.set_owner())?;
        let offered = self.message("GET_FEATURES", |f| f.get_features())?;
        self.negotiated.features = offered & options.features;
        if self.negotiated.has(F_PROTOCOL_FEATURES) {
            self.negotiate_protocol(options)?;
        }
        self.set_features()
    }

    fn negotiate_protocol(&mut self, options: &ClientOptions) -> Result<()> {
        let offered = self.message("GET_PROTOCOL_FEATURES", |f| f.get_protocol_features())?;
        let chosen = offered & options.protocol;
        self.negotiated.protocol = chosen;
        self.message("SET_PROTOCOL_FEATURES", |f| f.set_protocol_features(chosen))?;
        if chosen.contains(ProtocolFeatures::REPLY_ACK) {
            self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        if chosen.contains(ProtocolFeatures::MQ) {
            self.negotiated.queues_max = self.message("GET_QUEUE_NUM", |f| f.get_queue_num())?;
        }
        if chosen.contains(ProtocolFeatures::BACKEND_REQ) {
            let (ours, theirs) = BackendChannel::pair()?;
            self.message("SET_BACKEND_REQ_FD", |f| f.set_backend_request_fd(&theirs))?;
            self.channel = Some(ours);
        }
        Ok(())
    }

    /// Returns a descriptor that becomes readable when the backend closes the connection.
    pub(crate) fn hangup_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.socket.as_fd(), PollFlags::IN)
    }
}

/// Connects, and waits for a listener.
fn connect(options: &ClientOptions) -> Result<UnixStream> {
    let deadline = Instant::now() + Duration::from_millis(options.connect_timeout_ms);
    loop {
        let error = match UnixStream::connect(&options.socket) {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        let starting = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
        if !starting || Instant::now() >= deadline {
            return Err(Error::io(format!("connect to {}", options.socket.display()), error));
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn wire_regions(memory: &Memory) -> Vec<VhostUserMemoryRegionInfo> {
    let wire = |region: &Arc<Region>| VhostUserMemoryRegionInfo {
        guest_phys_addr: region.guest.0,
        memory_size: region.bytes as u64,
        userspace_addr: region.user_address(),
        mmap_offset: 0,
        mmap_handle: region.fd.as_raw_fd(),
    };
    memory.regions().iter().map(wire).collect()
}
