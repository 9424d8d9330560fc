//! Parses a descriptor chain into a block request (virtio 1.2, section 5.2.6).
//!
//! Message framing is free: header, data and status may be split into buffers anywhere. So the
//! header is the first 16 readable bytes and the status is the last writable byte, wherever they
//! are. Header and range list are copied out of guest memory once; only the copies are inspected.

use std::ptr;

use flowstone_block::{
    Extent, Geometry, IoPriority, IoVec, Op, Request, SECTOR_BYTES, Sector, SectorCount, mutated,
};

use super::chain::{BadChain, Buffer, walk};
use super::memory::GuestMemory;
use super::protocol::{
    FILLED_SECTORS_MAX, HEADER_BYTES, ID_BYTES, RANGE_BYTES, RANGE_SECTORS_MAX, RANGE_UNMAP,
    RANGES_MAX, REQUEST_BYTES_MAX, Status, request_type,
};
use super::ring::SplitRing;

/// Most pieces of memory of a request: the limit of one preadv (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// A chain that is a well-formed request.
pub struct Parsed {
    /// The address of the status byte.
    pub status: *mut u8,
    /// The verdict on it.
    pub verdict: Verdict,
}

/// The verdict on a request.
#[derive(Debug)]
pub enum Verdict {
    /// Submit it; `op` and memory have been set.
    Submit,
    /// Submit these ranges, in any order; merged where they touch.
    Ranges(Op, Vec<Op>),
    /// Answer at once; the number of bytes written, without the status.
    Answer(Status, u32),
}

/// Parses the chain at `head` into `request`, which has been reset; `id` is the identity string of
/// the `disk`.
pub fn parse(
    ring: &SplitRing,
    head: u16,
    request: &mut Request,
    disk: &Geometry,
    id: &[u8; ID_BYTES],
) -> Result<Parsed, BadChain> {
    let (gathered, status) = gather(ring, head, &mut request.memory)?;
    let Gathered { header, readable_pieces, readable_bytes, writable_bytes, .. } = gathered;
    let header = Header::decode(&header);
    request.priority = header.priority;
    let verdict = match header.kind {
        request_type::IN => {
            request.memory.drain(..readable_pieces);
            transfer(request, Op::Read, header.sector, writable_bytes, disk)
        }
        request_type::OUT if disk.readonly => Verdict::Answer(Status::IoError, 0),
        request_type::OUT => {
            request.memory.truncate(readable_pieces);
            transfer(request, Op::Write, header.sector, readable_bytes, disk)
        }
        request_type::FLUSH => {
            request.memory.clear();
            request.op = Op::Flush;
            let answer = Verdict::Answer(Status::Ok, 0);
            mutated("frontend.request.answers-flush-without-flush", Verdict::Submit, answer)
        }
        request_type::GET_ID => {
            request.memory.drain(..readable_pieces);
            answer_id(request, id)
        }
        request_type::DISCARD | request_type::WRITE_ZEROES => {
            request.memory.truncate(readable_pieces);
            ranges(request, header.kind, readable_bytes, disk)
        }
        _ => Verdict::Answer(Status::Unsupported, 0),
    };
    Ok(Parsed { status, verdict })
}

struct Header {
    kind: u32,
    priority: IoPriority,
    sector: Sector,
}

impl Header {
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Self {
        let [t0, t1, t2, t3, p0, p1, _, _, sector @ ..] = *bytes;
        Self {
            kind: u32::from_le_bytes([t0, t1, t2, t3]),
            priority: IoPriority(u16::from_le_bytes([p0, p1])),
            sector: Sector::new(u64::from_le_bytes(sector)),
        }
    }
}

/// Header and memory of a chain, gathered before it is checked.
struct Gathered<'a> {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    /// Ends with the status byte, until that is taken off.
    memory: &'a mut Vec<IoVec>,
    /// Number of pieces readable by the device (they come first).
    readable_pieces: usize,
    readable_bytes: u64,
    writable_bytes: u64,
}

fn gather<'a>(
    ring: &SplitRing,
    head: u16,
    memory: &'a mut Vec<IoVec>,
) -> Result<(Gathered<'a>, *mut u8), BadChain> {
    memory.clear();
    let mut gathered = Gathered {
        header: [0; HEADER_BYTES],
        header_filled: 0,
        memory,
        readable_pieces: 0,
        readable_bytes: 0,
        writable_bytes: 0,
    };
    walk(ring, head, |buffer| gathered.buffer(ring.memory(), buffer))?;
    let status = gathered.take_status()?;
    Ok((gathered, status))
}

impl Gathered<'_> {
    #[inline]
    fn buffer(&mut self, guest: &GuestMemory, buffer: Buffer) -> Result<(), BadChain> {
        let Buffer { address, bytes, writable } = buffer;
        guest
            .pieces(address, bytes, |piece| self.piece(piece, writable))
            .map_err(|_| BadChain::Unmapped)?;
        if self.memory.len() > PIECES_MAX { Err(BadChain::TooLong) } else { Ok(()) }
    }

    #[inline]
    fn piece(&mut self, piece: IoVec, writable: bool) {
        if writable {
            self.writable_bytes += piece.bytes() as u64;
            self.memory.push(piece);
            return;
        }
        let part = piece.truncate(HEADER_BYTES - self.header_filled);
        copy_from(part, &mut self.header[self.header_filled..][..part.bytes()]);
        self.header_filled += part.bytes();
        let rest = piece.skip(part.bytes());
        if rest.bytes() > 0 {
            self.readable_bytes += rest.bytes() as u64;
            self.readable_pieces += 1;
            self.memory.push(rest);
        }
    }

    /// Takes the status byte off the end of the writable pieces.
    #[inline]
    fn take_status(&mut self) -> Result<*mut u8, BadChain> {
        if self.header_filled < HEADER_BYTES || self.writable_bytes == 0 {
            return Err(BadChain::Short);
        }
        let last = self.memory.pop().ok_or(BadChain::Short)?;
        if last.bytes() > 1 {
            self.memory.push(last.truncate(last.bytes() - 1));
        }
        self.writable_bytes -= 1;
        Ok(last.skip(last.bytes() - 1).address())
    }
}

fn copy_from(piece: IoVec, target: &mut [u8]) {
    // SAFETY: the piece is mapped guest memory of this length, and the target is ours.
    unsafe { ptr::copy_nonoverlapping(piece.address(), target.as_mut_ptr(), target.len()) };
}

fn transfer(
    request: &mut Request,
    op: impl Fn(Extent) -> Op,
    start: Sector,
    bytes: u64,
    disk: &Geometry,
) -> Verdict {
    let extent = SectorCount::from_bytes(bytes)
        .filter(|_| bytes <= REQUEST_BYTES_MAX)
        .and_then(|count| Extent::new(start, count))
        .filter(|extent| extent.fits(disk.capacity));
    match extent {
        Some(extent) => {
            request.op = op(extent);
            Verdict::Submit
        }
        None => Verdict::Answer(Status::IoError, 0),
    }
}

fn answer_id(request: &mut Request, id: &[u8; ID_BYTES]) -> Verdict {
    let room: usize = request.memory.iter().map(|piece| piece.bytes()).sum();
    if room < ID_BYTES {
        return Verdict::Answer(Status::IoError, 0);
    }
    let mut left = ID_BYTES;
    request.memory.retain_mut(|piece| {
        *piece = piece.truncate(left);
        left -= piece.bytes();
        piece.bytes() > 0
    });
    request.copy_in(0, id);
    Verdict::Answer(Status::Ok, ID_BYTES as u32)
}

/// Parses the range list of a discard or write-zeroes request: if one range is invalid, none is
/// done.
fn ranges(request: &mut Request, kind: u32, bytes: u64, disk: &Geometry) -> Verdict {
    let most = u64::from(RANGES_MAX) * RANGE_BYTES as u64;
    let whole = bytes > 0 && bytes.is_multiple_of(RANGE_BYTES as u64);
    if disk.readonly || !whole || bytes > most {
        return Verdict::Answer(Status::IoError, 0);
    }
    if kind == request_type::DISCARD && !disk.discards {
        return Verdict::Answer(Status::Unsupported, 0);
    }
    let mut copy = [0; RANGES_MAX as usize * RANGE_BYTES];
    let list = &mut copy[..bytes as usize];
    request.copy_out(0, list);
    request.memory.clear();
    let mut ops = Vec::with_capacity(list.len() / RANGE_BYTES);
    for range in list.chunks_exact(RANGE_BYTES) {
        match range_op(kind, range, disk) {
            Ok(op) => push_merged(&mut ops, op),
            Err(status) => return Verdict::Answer(status, 0),
        }
    }
    if kind == request_type::WRITE_ZEROES && disk.zeroes_are_written && fills_too_much(&ops) {
        // The driver writes the zeroes itself, or asks for shorter ranges.
        return Verdict::Answer(Status::Unsupported, 0);
    }
    match ops.pop() {
        Some(first) => Verdict::Ranges(first, ops),
        None => Verdict::Answer(Status::IoError, 0),
    }
}

/// Returns whether more zeroes are to be written than the limit: such a request could be neither
/// interrupted nor throttled.
fn fills_too_much(ops: &[Op]) -> bool {
    let bytes: u64 = ops.iter().map(|op| op.bytes()).sum();
    let is_too_much = bytes > u64::from(FILLED_SECTORS_MAX) * SECTOR_BYTES;
    mutated("frontend.request.fills-any-range", is_too_much, false)
}

fn range_op(kind: u32, range: &[u8], disk: &Geometry) -> Result<Op, Status> {
    let word =
        |at: usize| u32::from_le_bytes([range[at], range[at + 1], range[at + 2], range[at + 3]]);
    let start = u64::from(word(0)) | u64::from(word(4)) << 32;
    let (count, flags) = (word(8), word(12));
    let unmap = flags & RANGE_UNMAP != 0;
    let known = if kind == request_type::DISCARD { 0 } else { RANGE_UNMAP };
    if flags & !known != 0 {
        return Err(Status::Unsupported);
    }
    if count > RANGE_SECTORS_MAX {
        return Err(Status::IoError);
    }
    let extent = Extent::new(Sector::new(start), SectorCount::new(u64::from(count)))
        .filter(|extent| extent.fits(disk.capacity))
        .ok_or(Status::IoError)?;
    Ok(match kind {
        request_type::DISCARD => Op::Discard(extent),
        _ => Op::WriteZeroes { extent, unmap },
    })
}

/// Appends `op`, merged with the last one if they touch: the cost is per range, not per byte.
fn push_merged(ops: &mut Vec<Op>, op: Op) {
    let merged = match (ops.last(), op) {
        (Some(Op::Discard(last)), Op::Discard(next)) => last.merge(next).map(Op::Discard),
        (
            Some(Op::WriteZeroes { extent: last, unmap: first }),
            Op::WriteZeroes { extent: next, unmap },
        ) if *first == unmap => last.merge(next).map(|extent| Op::WriteZeroes { extent, unmap }),
        _ => None,
    };
    match (merged, ops.last_mut()) {
        (Some(merged), Some(last)) => *last = merged,
        _ => ops.push(op),
    }
}

/// Returns the bytes of guest memory that a finished request has written, status included.
pub fn written_bytes(op: Op, status: Status) -> u32 {
    match op {
        Op::Read(extent) if status == Status::Ok => {
            u32::try_from(extent.count().get() * SECTOR_BYTES + 1).unwrap_or(u32::MAX)
        }
        _ => 1,
    }
}
