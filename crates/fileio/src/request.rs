//! What is asked of a host file, and what comes back.

use flowstone_block::{Errno, IoVec, Outcome, is_whole, mutant};

/// A byte position in a host file; never a guest address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileOffset(u64);

impl FileOffset {
    /// The position this many bytes from the start of the file.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The position in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `bytes` further on.
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
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes; as many as the memory has.
        bytes: u64,
    },
    /// Put the memory into the file.
    Write {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes; as many as the memory has.
        bytes: u64,
        /// Whether the data must be durable before the write completes.
        durable: bool,
    },
    /// Make completed writes durable, with the metadata needed to read them back.
    Datasync,
    /// Give the range's space back; it reads as zeroes afterwards. A device that cannot do both
    /// at once is zeroed, and keeps the space.
    Punch {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes.
        bytes: u64,
    },
    /// Give the range's space back; nothing needs its content. What it reads as until it is written
    /// again is zeroes if [`FileIo::discards_to_zeroes`](crate::FileIo::discards_to_zeroes), and
    /// anything otherwise. A device that takes no discards is left as it is.
    Discard {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes.
        bytes: u64,
    },
    /// Make the range read as zeroes, and leave the host's space as it is: none is given back, and
    /// none is given to holes. A device (which has its space anyhow) is told that nothing is there.
    Clear {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes.
        bytes: u64,
    },
    /// Make the range read as zeroes, and give it space if it has none.
    Zero {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes.
        bytes: u64,
    },
    /// Give the range host space now, so that later writes to it do not run out. Content stays,
    /// what was a hole reads as zeroes, and a file that ends earlier is extended. A host that
    /// cannot promise space extends the file all the same.
    Allocate {
        /// Where the range begins.
        offset: FileOffset,
        /// How many bytes.
        bytes: u64,
    },
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
    /// No memory, for operations that carry none.
    pub const EMPTY: Self = Self { first: std::ptr::NonNull::dangling().as_ptr(), count: 0 };

    /// Names a list of pieces.
    ///
    /// # Safety
    /// The list must neither move nor change, and the memory its pieces name must stay valid,
    /// until the request that carries it has completed.
    pub const unsafe fn new(list: &[IoVec]) -> Self {
        Self { first: list.as_ptr(), count: list.len() }
    }

    /// The pieces.
    pub fn pieces(&self) -> &[IoVec] {
        // SAFETY: valid until the completion, by the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

/// An operation with its memory and the submitter's mark.
#[derive(Clone, Copy, Debug)]
pub struct FileRequest {
    /// What to do.
    pub op: FileOp,
    /// The memory to read into or write from.
    pub memory: MemoryList,
    /// Returned unchanged with the completion.
    pub tag: usize,
    /// Of reads and writes: the host's page cache is not to keep the data (see `page_cache`). Only
    /// files that are accessed through it take notice.
    pub dont_cache: bool,
    /// Others wait for it, as for the commit of a journal: where disks contend for a device, it
    /// goes before what else of its disk and VM waits.
    pub is_first: bool,
}

impl FileRequest {
    /// A request whose data the page cache may keep.
    pub const fn new(op: FileOp, memory: MemoryList, tag: usize) -> Self {
        Self { op, memory, tag, dont_cache: false, is_first: false }
    }

    /// Returns whether it would write what is not its data: its memory has been taken away, and
    /// zeroes lie there.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.op, FileOp::Write { .. })
            && !is_whole(self.memory.pieces())
            && !mutant("fileio.write.takes-lost-memory")
    }

    /// What the host's answer is worth. A page of memory that was taken away while the request was
    /// on its way may have been replaced before the kernel came to it: then zeroes have been
    /// written, or what was read is gone.
    pub(crate) fn believe(&self, outcome: Outcome) -> Outcome {
        let is_lost = !is_whole(self.memory.pieces()) && !mutant("fileio.done.takes-lost-memory");
        if outcome.is_ok() && is_lost { Err(Errno::FAULT) } else { outcome }
    }

    /// The same, with another word on what the page cache is to keep.
    #[must_use]
    pub const fn dont_cache(self, dont_cache: bool) -> Self {
        Self { dont_cache, ..self }
    }

    /// The same, with another word on what goes first.
    #[must_use]
    pub const fn first(self, is_first: bool) -> Self {
        Self { is_first, ..self }
    }
}

/// How a file request ended.
#[derive(Clone, Copy, Debug)]
pub struct FileCompletion {
    /// The submitter's mark.
    pub tag: usize,
    /// Done in full, or the host's error.
    pub outcome: Outcome,
    /// Whether the host was asked. If not, a request that failed has neither written nor synced.
    pub asked: bool,
}

impl FileCompletion {
    /// Of a request that the host was asked to carry out.
    pub const fn new(tag: usize, outcome: Outcome) -> Self {
        Self { tag, outcome, asked: true }
    }

    /// Of a request that failed here, before the host was asked for anything.
    pub fn refused(tag: usize, errno: Errno) -> Self {
        let asked = mutant("fileio.refusal.says-the-host-was-asked");
        Self { tag, outcome: Err(errno), asked }
    }
}
