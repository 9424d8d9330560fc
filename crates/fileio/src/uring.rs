//! The `uring` engine: one io_uring per queue, no runtime.
//!
//! A batch is submitted with one `io_uring_enter`, which also runs the ring's deferred completion
//! work, so finished requests are reaped in the issue context. A sleep is one `io_uring_enter`
//! too: doorbells are polls in the same ring. The ring defers its work to the thread that owns it
//! (`DEFER_TASKRUN`), so a look at the completion queue shows nothing until that thread enters
//! the kernel; the `TASKRUN` flag in shared memory says when entering is worth it.
//!
//! What the ring cannot do goes to the pool of the `sync` engine, whose event is one more poll.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Doorbells, Errno, IoVec, Outcome, QueueDepth};
use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use slab::Slab;

use crate::blocking::skip;
use crate::descriptor::QueueFile;
use crate::direct::{Bounce, Bounces};
use crate::pool::PoolChannel;
use crate::zeroes::is_unsupported;
use crate::{FileChannel, FileCompletion, FileOp, FileRequest, MemoryList};

/// Marks of doorbell polls lie above every slab index.
const DOORBELL_BASE: u64 = 1 << 32;
/// Doorbells per ring: those of the caller, and the pool's.
const DOORBELLS_MAX: usize = 4;
const POOL_DOORBELL: usize = DOORBELLS_MAX - 1;

/// Places of a queue's two descriptors among the ring's registered files.
const SHARED_FILE: u32 = 0;
const SYNC_FILE: u32 = 1;

const POLL_IN: u32 = libc::POLLIN as u32;

/// A queue's ring.
pub(crate) struct UringChannel {
    ring: IoUring,
    file: Arc<QueueFile>,
    pool: PoolChannel,
    in_flight: Slab<InFlight>,
    /// Requests that memory of our own stands in for.
    bounces: Bounces,
    /// Completions of requests that could not be started.
    refused: Vec<FileCompletion>,
    armed: [bool; DOORBELLS_MAX],
    /// Submissions in the queue that the kernel has not been told of.
    queued: usize,
}

/// A request the kernel works on.
struct InFlight {
    request: FileRequest,
    /// Bytes moved by transfers that came up short.
    moved: u64,
    /// What is left of the memory after a short transfer; its address is given to the kernel.
    rest: Vec<IoVec>,
    /// Stands in for memory that direct I/O cannot take.
    bounce: Option<Bounce>,
}

impl UringChannel {
    pub fn new(file: Arc<QueueFile>, pool: PoolChannel, depth: QueueDepth) -> io::Result<Self> {
        let entries = u32::from(depth.0.max(8)).next_power_of_two() + DOORBELLS_MAX as u32;
        let ring = build_ring(entries)?;
        ring.submitter().register_files(&[file.shared.file.as_raw_fd(), file.sync.as_raw_fd()])?;
        let in_flight = Slab::with_capacity(usize::from(depth.0));
        Ok(Self {
            ring,
            file,
            pool,
            in_flight,
            bounces: Bounces::default(),
            refused: Vec::new(),
            armed: [false; DOORBELLS_MAX],
            queued: 0,
        })
    }

    fn push(&mut self, entry: squeue::Entry) {
        // SAFETY: memory named by the entry lives in `in_flight` or is vouched for by the
        // request's MemoryList, and both outlast the completion (see Drop).
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0, None);
        }
        self.queued += 1;
    }

    fn start(&mut self, index: usize) {
        let entry = entry_for(&self.in_flight[index]).user_data(index as u64);
        self.push(entry);
    }

    /// Starts a request whose memory needs a stand-in. A refusal makes room for the next one.
    fn start_bounced(&mut self, request: FileRequest) {
        let mut next = Some(request);
        while let Some(request) = next.take() {
            match Bounce::new(&request) {
                Ok(bounce) => self.insert(request, Some(bounce)),
                Err(errno) => {
                    let tag = request.tag;
                    self.refused.push(FileCompletion { tag, outcome: Err(errno) });
                    next = self.bounces.ended();
                }
            }
        }
    }

    fn insert(&mut self, request: FileRequest, bounce: Option<Bounce>) {
        let rest = Vec::new();
        let index = self.in_flight.insert(InFlight { request, moved: 0, rest, bounce });
        self.start(index);
    }

    /// Takes a request out that has come to its end here.
    fn remove(&mut self, index: usize) -> FileRequest {
        let InFlight { request, bounce, .. } = self.in_flight.remove(index);
        if bounce.is_some()
            && let Some(next) = self.bounces.ended()
        {
            self.start_bounced(next);
        }
        request
    }

    /// Hands what is queued to the kernel, runs completion work, and waits for `wanted`
    /// completions or the deadline.
    fn enter(&mut self, wanted: u32, deadline: Option<Instant>) {
        let entered = match deadline {
            None => {
                let flags = EnterFlags::GETEVENTS.bits();
                // SAFETY: no argument is passed, and the entries were vouched for in `push`.
                unsafe {
                    self.ring.submitter().enter::<libc::sigset_t>(
                        self.queued as u32,
                        wanted,
                        flags,
                        None,
                    )
                }
            }
            Some(at) => {
                let timeout = timespec(at.saturating_duration_since(Instant::now()));
                let arguments = SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(wanted as usize, &arguments)
            }
        };
        match entered {
            Ok(accepted) => self.queued -= accepted.min(self.queued),
            // Interrupted, timed out, or out of room until completions are reaped: the kernel has
            // taken what it took; count what is left in the queue.
            Err(_) => self.queued = self.ring.submission().len(),
        }
    }

    /// Whether the kernel holds completions that only entering it brings out: their work waits for
    /// this thread, or the completion queue was full when they came.
    fn has_more_inside(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    fn arm(&mut self, doorbell: usize, fd: RawFd) {
        if mem::replace(&mut self.armed[doorbell], true) {
            return;
        }
        let poll = opcode::PollAdd::new(Fd(fd), POLL_IN).build();
        self.push(poll.user_data(DOORBELL_BASE + doorbell as u64));
    }

    fn rung(&mut self, doorbell: usize) {
        self.armed[doorbell] = false;
        if doorbell == POOL_DOORBELL {
            // Before the completion queue is read: a later delivery rings again.
            self.pool.clear_event();
        }
    }

    fn finish(&mut self, mark: u64, result: i32, done: &mut Vec<FileCompletion>) {
        if mark >= DOORBELL_BASE {
            return self.rung((mark - DOORBELL_BASE) as usize);
        }
        let index = mark as usize;
        match self.in_flight[index].advance(result) {
            Progress::Done(outcome) => {
                let request = self.remove(index);
                done.push(FileCompletion { tag: request.tag, outcome });
            }
            Progress::Again => self.start(index),
            Progress::Unsupported => {
                let request = self.remove(index);
                self.pool.submit(request);
                self.pool.kick();
            }
        }
    }

    fn collect(&mut self, done: &mut Vec<FileCompletion>) {
        while let Some(entry) = { self.ring.completion().next() } {
            self.finish(entry.user_data(), entry.result(), done);
        }
    }
}

impl FileChannel for UringChannel {
    fn submit(&mut self, request: FileRequest) {
        if goes_to_the_pool(request.op) {
            return self.pool.submit(request);
        }
        if !Bounce::is_needed(self.file.shared.direct.as_ref(), &request) {
            return self.insert(request, None);
        }
        if let Some(request) = self.bounces.admit(request) {
            self.start_bounced(request);
        }
    }

    fn kick(&mut self) {
        self.pool.kick();
        if self.queued > 0 {
            self.enter(0, None);
        }
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.collect(done);
        if self.has_more_inside() {
            self.enter(0, None);
            self.collect(done);
        }
        if self.pool.in_flight() > 0 {
            self.pool.reap(done);
        }
        done.append(&mut self.refused);
        // A resumed transfer must not wait for the next batch.
        self.kick();
    }

    fn sleep(&mut self, doorbells: &Doorbells<'_>) {
        self.pool.kick();
        assert!(doorbells.fds.len() < DOORBELLS_MAX, "more doorbells than a ring has room for");
        for (doorbell, fd) in doorbells.fds.iter().enumerate() {
            self.arm(doorbell, fd.as_raw_fd());
        }
        if self.pool.in_flight() > 0 {
            self.arm(POOL_DOORBELL, self.pool.completion_event().as_raw_fd());
        }
        // What was refused is a completion already.
        let wanted = u32::from(self.refused.is_empty());
        self.enter(wanted, doorbells.deadline);
    }
}

impl Drop for UringChannel {
    /// Waits for the kernel to be done with the memory of every request.
    fn drop(&mut self) {
        let mut done = Vec::new();
        self.kick();
        while !self.in_flight.is_empty() {
            self.enter(1, None);
            self.collect(&mut done);
        }
    }
}

/// What a completion means for its request.
enum Progress {
    Done(Outcome),
    Again,
    Unsupported,
}

impl InFlight {
    fn advance(&mut self, result: i32) -> Progress {
        let moved = match u64::try_from(result) {
            Ok(moved) => moved,
            Err(_) => return self.failed(Errno::from_raw_os_error(-result)),
        };
        let (FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. }) = self.request.op else {
            return Progress::Done(Ok(()));
        };
        self.moved += moved;
        if let Some(bounce) = &mut self.bounce {
            bounce.advance(&self.request, moved as usize);
        }
        if self.moved >= bytes {
            return Progress::Done(Ok(()));
        }
        if moved == 0 {
            // The file ends before the request does: it has been truncated.
            return Progress::Done(Err(Errno::IO));
        }
        if self.bounce.is_none() {
            self.rest = skip(self.request.memory.pieces(), self.moved as usize);
        }
        Progress::Again
    }

    fn failed(&self, errno: Errno) -> Progress {
        let space = matches!(self.request.op, FileOp::Zero { .. } | FileOp::Allocate { .. });
        match errno {
            Errno::INTR => Progress::Again,
            // The ring would not wait for the device; a thread will.
            Errno::AGAIN => Progress::Unsupported,
            errno if space && is_unsupported(errno) => Progress::Unsupported,
            _ => Progress::Done(Err(errno)),
        }
    }

    /// The memory that the kernel is given now.
    fn pieces(&self) -> &[IoVec] {
        match &self.bounce {
            Some(bounce) => bounce.pieces(),
            None if self.moved == 0 => self.request.memory.pieces(),
            None => &self.rest,
        }
    }
}

/// They look for holes first, for which a ring has no call; and a ring would give what locks a file
/// to a thread anyway.
const fn goes_to_the_pool(op: FileOp) -> bool {
    matches!(op, FileOp::Punch { .. } | FileOp::Discard { .. } | FileOp::Clear { .. })
}

/// The submission for what is left of a request.
fn entry_for(in_flight: &InFlight) -> squeue::Entry {
    let request = remaining(in_flight);
    let file = Fixed(SHARED_FILE);
    let pieces = request.memory.pieces();
    let first = pieces.as_ptr().cast::<libc::iovec>();
    let count = pieces.len() as u32;
    match request.op {
        FileOp::Read { offset, .. } => match pieces {
            [only] => opcode::Read::new(file, only.address(), only.bytes() as u32)
                .offset(offset.get())
                .build(),
            _ => opcode::Readv::new(file, first, count).offset(offset.get()).build(),
        },
        FileOp::Write { offset, durable, .. } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            match pieces {
                [only] => opcode::Write::new(file, only.address(), only.bytes() as u32)
                    .offset(offset.get())
                    .rw_flags(flags)
                    .build(),
                _ => opcode::Writev::new(file, first, count)
                    .offset(offset.get())
                    .rw_flags(flags)
                    .build(),
            }
        }
        FileOp::Datasync => {
            opcode::Fsync::new(Fixed(SYNC_FILE)).flags(FsyncFlags::DATASYNC).build()
        }
        FileOp::Punch { .. } | FileOp::Discard { .. } | FileOp::Clear { .. } => {
            unreachable!("given to the pool")
        }
        FileOp::Zero { offset, bytes } => opcode::Fallocate::new(file, bytes)
            .offset(offset.get())
            .mode(libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE)
            .build(),
        FileOp::Allocate { offset, bytes } => {
            opcode::Fallocate::new(file, bytes).offset(offset.get()).mode(0).build()
        }
    }
}

/// The request without what short transfers have moved already.
fn remaining(in_flight: &InFlight) -> FileRequest {
    let mut request = in_flight.request;
    let moved = in_flight.moved;
    match &mut request.op {
        FileOp::Read { offset, bytes } | FileOp::Write { offset, bytes, .. } => {
            *offset = offset.forward(moved);
            *bytes -= moved;
        }
        FileOp::Datasync
        | FileOp::Punch { .. }
        | FileOp::Discard { .. }
        | FileOp::Clear { .. }
        | FileOp::Zero { .. }
        | FileOp::Allocate { .. } => {}
    }
    // SAFETY: `rest` moves only when the next short transfer replaces it, and its heap memory
    // stays where it is while the slab entry itself moves.
    request.memory = unsafe { MemoryList::new(in_flight.pieces()) };
    request
}

fn build_ring(entries: u32) -> io::Result<IoUring> {
    let deferred = IoUring::builder()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_clamp()
        .build(entries);
    // Kernels before 6.1 do not know these flags; the plain ring works the same, a little slower.
    deferred.or_else(|_| IoUring::builder().setup_clamp().build(entries))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::new().sec(duration.as_secs()).nsec(duration.subsec_nanos())
}
