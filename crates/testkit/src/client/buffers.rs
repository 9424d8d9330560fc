//! Guest buffers of one request, and their split into descriptors.
//!
//! A slot holds header, status and payload of one request at a time. The specification lets a
//! driver frame these bytes in any way, so `Shape` can make the framing arbitrarily unusual.
//!
//! ```text
//! 0 header (16)   64 status (1)   4096 + offset_bytes payload ... [joined status]
//! ```

use std::sync::atomic::Ordering;

use super::{Request, Status};
use crate::driver::{Memory, Segment, Slice};
use crate::virtio::HEADER_BYTES;
use crate::{Error, Result};

const STATUS_OFFSET: usize = 64;
const PAYLOAD_OFFSET: usize = 4096;

/// The layout of a request's bytes in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Longest descriptor of payload.
    pub segment_bytes: usize,
    /// Distance of the payload from a page boundary.
    pub offset_bytes: usize,
    /// Split the header into two descriptors at this byte (0: one descriptor).
    pub split_header_at: usize,
    /// Put the status byte into the same descriptor as the end of the payload.
    pub join_status: bool,
}

impl Default for Shape {
    /// Returns the layout used by Linux: one descriptor each, payload on a page boundary.
    fn default() -> Self {
        Shape { segment_bytes: usize::MAX, offset_bytes: 0, split_header_at: 0, join_status: false }
    }
}

/// Guest memory for one request.
#[derive(Debug)]
pub(super) struct Buffers {
    memory: Slice,
    payload_bytes: usize,
    status_at: usize,
    payload_at: usize,
    in_bytes: usize,
}

impl Buffers {
    /// Returns the guest memory that one slot takes.
    pub(super) fn footprint(payload_bytes: usize) -> usize {
        // Room for a payload that starts anywhere in its first page, and for a joined status.
        PAYLOAD_OFFSET + payload_bytes.next_multiple_of(4096) + 2 * 4096
    }

    /// Allocates memory for payloads of up to `payload_bytes`.
    pub(super) fn new(memory: &Memory, payload_bytes: usize) -> Result<Self> {
        let memory = memory.alloc(Self::footprint(payload_bytes), 4096)?;
        let (status_at, payload_at) = (STATUS_OFFSET, PAYLOAD_OFFSET);
        Ok(Buffers { memory, payload_bytes, status_at, payload_at, in_bytes: 0 })
    }

    /// Copies a request in and returns its chain.
    pub(super) fn load(&mut self, request: &Request<'_>, shape: Shape) -> Result<Vec<Segment>> {
        let payload_bytes = request.out.len() + request.in_bytes;
        if payload_bytes > self.payload_bytes {
            let most = self.payload_bytes;
            return Err(Error::Misuse(format!("payload of {payload_bytes} bytes, slots {most}")));
        }
        self.payload_at = PAYLOAD_OFFSET + shape.offset_bytes % 4096;
        self.in_bytes = request.in_bytes;
        let in_at = self.payload_at + request.out.len();
        let joined = shape.join_status && request.in_bytes > 0;
        self.status_at = if joined { in_at + request.in_bytes } else { STATUS_OFFSET };
        self.memory.write(0, &request.header());
        self.memory.write(self.payload_at, &request.out);
        // Filler, so that stale bytes cannot pass for an answer.
        self.memory.part(in_at, request.in_bytes).fill(0xdb);
        self.memory.cell8(self.status_at).store(Status::FILLER, Ordering::Relaxed);
        Ok(self.chain(request, shape, joined))
    }

    /// Returns the status byte written by the device.
    pub(super) fn status(&self) -> Status {
        Status::from(self.memory.cell8(self.status_at).load(Ordering::Acquire))
    }

    /// Returns the bytes written by the device (which follow the payload that it reads, if any).
    pub(super) fn answer(&self, out_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.in_bytes];
        self.memory.read(self.payload_at + out_bytes, &mut bytes);
        bytes
    }

    fn chain(&self, request: &Request<'_>, shape: Shape, joined: bool) -> Vec<Segment> {
        let part = |at, bytes, writable| self.memory.part(at, bytes).segment(writable);
        let mut chain = Vec::with_capacity(8);
        match shape.split_header_at {
            cut @ 1..HEADER_BYTES => {
                chain.push(part(0, cut, false));
                chain.push(part(cut, HEADER_BYTES - cut, false));
            }
            _ => chain.push(part(0, HEADER_BYTES, false)),
        }
        let in_at = self.payload_at + request.out.len();
        let in_bytes = request.in_bytes + usize::from(joined);
        let outgoing = self.memory.part(self.payload_at, request.out.len());
        chain.extend(outgoing.segments(shape.segment_bytes, false));
        chain.extend(self.memory.part(in_at, in_bytes).segments(shape.segment_bytes, true));
        if !joined {
            chain.push(part(self.status_at, 1, true));
        }
        chain
    }
}
