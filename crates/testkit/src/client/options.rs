//! The options of a client, before negotiation with the backend.
//!
//! The defaults are QEMU 7.2's: everything that it would accept is requested, and used if offered.

use std::path::{Path, PathBuf};

use super::{ProtocolFeatures, Shape};
use crate::{HANG, virtio};

/// The message that announces guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryMessage {
    /// SET_MEM_TABLE with all regions at once.
    Table,
    /// ADD_MEM_REG once per region; needs CONFIGURE_MEM_SLOTS.
    AddRegion,
}

/// Options of a session. Start from `ClientOptions::new` and change the ones under test.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The backend's socket.
    pub socket: PathBuf,
    /// Number of queues to run.
    pub queues: usize,
    /// Descriptors per queue.
    pub queue_size: u16,
    /// Virtio features to acknowledge where offered.
    pub features: u64,
    /// Protocol features to acknowledge where offered.
    pub protocol: ProtocolFeatures,
    /// The message that announces memory.
    pub memory_message: MemoryMessage,
    /// Number of memory regions.
    pub memory_regions: usize,
    /// Size of the hole between memory regions.
    pub memory_gap_bytes: u64,
    /// Requests that can be in flight per queue.
    pub slots: usize,
    /// Largest request payload.
    pub slot_bytes: usize,
    /// The layout of payloads in descriptors.
    pub shape: Shape,
    /// Longest wait for one reply, on the socket or in a ring.
    pub timeout_ms: u64,
    /// Longest wait for a listener on the socket.
    pub connect_timeout_ms: u64,
    /// Signal each ring's kick once when it starts, which QEMU does not.
    pub kick_on_start: bool,
}

impl ClientOptions {
    /// Options for one queue of 128, everything negotiated, 1 MiB requests, and the timeout of a
    /// hang.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        ClientOptions {
            socket: socket.as_ref().to_path_buf(),
            queues: 1,
            queue_size: 128,
            features: virtio::F_DEFAULT,
            protocol: ProtocolFeatures::REPLY_ACK
                | ProtocolFeatures::CONFIG
                | ProtocolFeatures::MQ
                | ProtocolFeatures::INFLIGHT_SHMFD
                | ProtocolFeatures::CONFIGURE_MEM_SLOTS
                | ProtocolFeatures::BACKEND_REQ,
            memory_message: MemoryMessage::Table,
            memory_regions: 1,
            memory_gap_bytes: 0,
            slots: 32,
            slot_bytes: 1 << 20,
            shape: Shape::default(),
            timeout_ms: HANG.as_millis() as u64,
            connect_timeout_ms: HANG.as_millis() as u64,
            kick_on_start: false,
        }
    }

    /// Sets the number of queues.
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = queues;
        self
    }

    /// Removes these virtio features.
    pub fn without(mut self, features: u64) -> Self {
        self.features &= !features;
        self
    }

    /// Removes these protocol features.
    pub fn without_protocol(mut self, features: ProtocolFeatures) -> Self {
        self.protocol -= features;
        self
    }
}
