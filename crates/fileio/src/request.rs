//! Requests to a host file, and their completions.

use flowstone_block::{Errno, IoVec, Outcome, is_whole, mutated};

/// Bytes up to which data in memory is copied on the queue's own thread: Linux guests send up to
/// 1.25 MiB at once. The copy takes .2 ms, or some ms if the host has to find memory for it.
const LONG_COPY_BYTES: u64 = 2 << 20;

/// A byte position in a host file; never a guest address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(u64);

impl FileOffset {
    /// Makes the offset `bytes` from the start of the file.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Returns the offset in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the offset `bytes` further on.
    ///
    /// # Panics
    /// If it is past the end of the address space; file ranges are checked before they get here.
    #[must_use]
    pub const fn forward(self, bytes: u64) -> Self {
        Self(self.0.checked_add(bytes).expect("a file range within the address space"))
    }
}

/// One operation on a host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// Fill the memory from the file. Reading past the end of the file is an error.
    Read {
        /// Start of the range.
        offset: FileOffset,
        /// Its length, which is that of the memory.
        bytes: u64,
    },
    /// Write the memory to the file.
    Write {
        /// Start of the range.
        offset: FileOffset,
        /// Its length, which is that of the memory.
        bytes: u64,
        /// The data must be durable before the write completes.
        durable: bool,
    },
    /// Make completed writes durable, with the metadata needed to read them back.
    Datasync,
    /// Free the range's space; it reads as zeroes afterwards. A device that cannot do both at once
    /// is zeroed, and keeps the space.
    Punch {
        /// Start of the range.
        offset: FileOffset,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Free the range's space; its content is not needed. It then reads as zeroes if
    /// [`FileIo::discards_to_zeroes`](crate::FileIo::discards_to_zeroes), and as anything
    /// otherwise, until it is written again. A device that takes no discards is left as it is.
    Discard {
        /// Start of the range.
        offset: FileOffset,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Make the range read as zeroes, and leave the host's allocation as it is: nothing is freed,
    /// and holes stay holes. A device (whose space is fixed) is told that the range is unused.
    Clear {
        /// Start of the range.
        offset: FileOffset,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Make the range read as zeroes, and allocate it if it is a hole.
    Zero {
        /// Start of the range.
        offset: FileOffset,
        /// Its length in bytes.
        bytes: u64,
    },
    /// Allocate host space for the range now, so that later writes to it do not run out. Content
    /// stays, holes read as zeroes, and a file that ends earlier is extended. A host that cannot
    /// allocate space extends the file all the same.
    Allocate {
        /// Start of the range.
        offset: FileOffset,
        /// Its length in bytes.
        bytes: u64,
    },
}

impl FileOp {
    /// Returns the bytes that a read or write moves. Changes of a file's map move none.
    pub const fn moved_bytes(self) -> u64 {
        match self {
            Self::Read { bytes, .. } | Self::Write { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Returns the part of a read or write that has `bytes` bytes from its byte `from` on; other
    /// operations have no parts.
    pub(crate) const fn part(self, from: u64, bytes: u64) -> Self {
        match self {
            Self::Read { offset, .. } => Self::Read { offset: offset.forward(from), bytes },
            Self::Write { offset, durable, .. } => {
                Self::Write { offset: offset.forward(from), bytes, durable }
            }
            _ => self,
        }
    }
}

/// The memory of a file request: the address of a list that belongs to the submitter.
#[derive(Clone, Copy, Debug)]
pub struct MemoryList {
    first: *const IoVec,
    count: usize,
}

// SAFETY: the maker of a MemoryList keeps list and memory valid until the completion, on
// whichever thread serves the request.
unsafe impl Send for MemoryList {}

impl MemoryList {
    /// The empty list, for operations without memory.
    pub const EMPTY: Self = Self { first: std::ptr::NonNull::dangling().as_ptr(), count: 0 };

    /// Makes a reference to a list of pieces.
    ///
    /// # Safety
    /// The list must neither move nor change, and the memory its pieces name must stay valid, until
    /// the request that carries it has completed.
    pub const unsafe fn new(list: &[IoVec]) -> Self {
        Self { first: list.as_ptr(), count: list.len() }
    }

    /// Returns the sum of the pieces' bytes.
    pub fn bytes(&self) -> u64 {
        self.pieces().iter().map(|piece| piece.bytes() as u64).sum()
    }

    /// Returns the pieces.
    pub fn pieces(&self) -> &[IoVec] {
        // SAFETY: valid until the completion, by the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

/// An operation with its memory and the submitter's tag.
#[derive(Clone, Copy, Debug)]
pub struct FileRequest {
    /// The operation.
    pub op: FileOp,
    /// The memory to read into or write from.
    pub memory: MemoryList,
    /// The submitter's tag, returned unchanged with the completion.
    pub tag: usize,
    /// Of reads and writes: the host's page cache is not to keep the data (see `page_cache`). Has
    /// an effect only on files that are accessed through it.
    pub dont_cache: bool,
    /// Others wait for it, as for the commit of a journal: where disks contend for a device, it
    /// goes before the other waiting requests of its disk and VM.
    pub is_first: bool,
    /// Of writes: the write stream of the drive, at most [`FileIo::write_streams`]; 0 is none.
    ///
    /// [`FileIo::write_streams`]: crate::FileIo::write_streams
    pub write_stream: u8,
}

impl FileRequest {
    /// Makes a request whose data the page cache may keep.
    pub const fn new(op: FileOp, memory: MemoryList, tag: usize) -> Self {
        Self { op, memory, tag, dont_cache: false, is_first: false, write_stream: 0 }
    }

    /// Returns whether copying its data takes long enough to hold up other queues of its thread.
    pub(crate) const fn is_long_copy(&self) -> bool {
        self.op.moved_bytes() > LONG_COPY_BYTES
    }

    /// Returns whether it is a write whose memory has been lost, so that it would write zeroes
    /// instead of its data.
    pub(crate) fn is_lost(&self) -> bool {
        let is_write = matches!(self.op, FileOp::Write { .. });
        let is_lost = is_write && !is_whole(self.memory.pieces());
        mutated("fileio.write.takes-lost-memory", is_lost, false)
    }

    /// Returns the outcome, or `FAULT` if the request's memory was lost. A page lost while the
    /// request was in flight may have been replaced before the kernel accessed it: then zeroes have
    /// been written, or the data read is lost.
    pub(crate) fn believe(&self, outcome: Outcome) -> Outcome {
        let is_whole = is_whole(self.memory.pieces());
        let is_whole = mutated("fileio.done.takes-lost-memory", is_whole, true);
        if outcome.is_ok() && !is_whole { Err(Errno::FAULT) } else { outcome }
    }

    /// Returns the request with `dont_cache` set to the argument.
    #[must_use]
    pub const fn dont_cache(self, dont_cache: bool) -> Self {
        Self { dont_cache, ..self }
    }

    /// Returns the request with `is_first` set to the argument.
    #[must_use]
    pub const fn first(self, is_first: bool) -> Self {
        Self { is_first, ..self }
    }

    /// Returns the request with `write_stream` set to the argument.
    #[must_use]
    pub const fn write_stream(self, write_stream: u8) -> Self {
        Self { write_stream, ..self }
    }
}

/// The completion of a file request.
#[derive(Clone, Copy, Debug)]
pub struct FileCompletion {
    /// The submitter's tag.
    pub tag: usize,
    /// Success in full, or the host's error.
    pub outcome: Outcome,
    /// The host was asked. If not, a request that failed has neither written nor synced.
    pub asked: bool,
}

impl FileCompletion {
    /// Makes the completion of a request that the host was asked to carry out.
    pub const fn new(tag: usize, outcome: Outcome) -> Self {
        Self { tag, outcome, asked: true }
    }

    /// Makes the completion of a request that failed before the host was asked.
    pub fn refused(tag: usize, errno: Errno) -> Self {
        let asked = mutated("fileio.refusal.says-the-host-was-asked", false, true);
        Self { tag, outcome: Err(errno), asked }
    }
}
