//! Requests of a block driver, and the status byte of the answer.
//!
//! A request is a header and two payloads, one that the device reads and one that it writes. The
//! named constructors make correct requests; `raw` makes any other. The placement of the bytes in
//! guest memory is decided elsewhere.

use crate::virtio::{
    HEADER_BYTES, ID_BYTES, RANGE_BYTES, RANGE_UNMAP, T_DISCARD, T_FLUSH, T_GET_ID, T_IN, T_OUT,
    T_WRITE_ZEROES,
};

/// The status byte of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Success.
    Ok,
    /// I/O error.
    IoErr,
    /// Not supported.
    Unsupp,
    /// The device did not write the byte (it still holds the driver's filler).
    Unwritten,
    /// A value that the specification does not define.
    Other(u8),
}

impl Status {
    /// Filler written by the driver before the request is sent.
    pub const FILLER: u8 = 0xee;
}

impl From<u8> for Status {
    fn from(byte: u8) -> Self {
        match byte {
            0 => Status::Ok,
            1 => Status::IoErr,
            2 => Status::Unsupp,
            Status::FILLER => Status::Unwritten,
            other => Status::Other(other),
        }
    }
}

/// One request to the device.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// `T_*`, or anything else.
    pub kind: u32,
    /// Priority as passed by Linux: class << 13 | hint << 3 | level.
    pub ioprio: u32,
    /// First sector.
    pub sector: u64,
    /// Payload the device reads.
    pub out: Payload<'a>,
    /// Bytes that the device writes, without the status.
    pub in_bytes: usize,
}

/// Payload of a request: borrowed from the test, or made by a constructor.
pub type Payload<'a> = std::borrow::Cow<'a, [u8]>;

impl<'a> Request<'a> {
    /// Makes a request of any type with any payloads.
    pub fn raw(kind: u32, sector: u64, out: &'a [u8], in_bytes: usize) -> Self {
        Request { kind, ioprio: 0, sector, out: Payload::Borrowed(out), in_bytes }
    }

    /// Makes a read of `bytes` from `sector` on.
    pub fn read(sector: u64, bytes: usize) -> Self {
        Self::raw(T_IN, sector, &[], bytes)
    }

    /// Makes a write of `data` from `sector` on.
    pub fn write(sector: u64, data: &'a [u8]) -> Self {
        Self::raw(T_OUT, sector, data, 0)
    }

    /// Makes a flush.
    pub fn flush() -> Self {
        Self::raw(T_FLUSH, 0, &[], 0)
    }

    /// Makes a request for the identity text.
    pub fn get_id() -> Self {
        Self::raw(T_GET_ID, 0, &[], ID_BYTES)
    }

    /// Makes a discard of ranges of (sector, sectors).
    pub fn discard(ranges: &[(u64, u32)]) -> Self {
        Self::ranges(T_DISCARD, ranges, 0)
    }

    /// Makes a write-zeroes request of ranges of (sector, sectors).
    pub fn write_zeroes(ranges: &[(u64, u32)], unmap: bool) -> Self {
        Self::ranges(T_WRITE_ZEROES, ranges, if unmap { RANGE_UNMAP } else { 0 })
    }

    /// Makes any request with ranges, with the same flags on each.
    pub fn ranges(kind: u32, ranges: &[(u64, u32)], flags: u32) -> Self {
        let mut out = Vec::with_capacity(ranges.len() * RANGE_BYTES);
        for &(sector, sectors) in ranges {
            out.extend_from_slice(&sector.to_le_bytes());
            out.extend_from_slice(&sectors.to_le_bytes());
            out.extend_from_slice(&flags.to_le_bytes());
        }
        Request { kind, ioprio: 0, sector: 0, out: Payload::Owned(out), in_bytes: 0 }
    }

    /// Sets the priority.
    pub fn with_ioprio(mut self, ioprio: u32) -> Self {
        self.ioprio = ioprio;
        self
    }

    /// Encodes the header.
    pub fn header(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.ioprio.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sector.to_le_bytes());
        bytes
    }
}
