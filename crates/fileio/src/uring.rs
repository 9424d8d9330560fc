//! The `uring` engine: the io_uring of the thread that runs the queue, without an async runtime.
//!
//! A batch is submitted with one `io_uring_enter`, which also runs the ring's deferred completion
//! work, so completed requests are reaped in the issue context. The thread sleeps in one
//! `io_uring_enter` on the same ring, too.
//!
//! Operations that the ring does not have go to the pool of the `sync` engine, which wakes the
//! thread.
//!
//! The file is passed by descriptor and not registered with the ring: a ring that several disks
//! share would keep the files of all of them, and their locks, until the slowest request of a
//! killed daemon has ended. So each request holds its own file, and the ring holds none.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use flowstone_block::{Errno, IoVec, NextLook, Outcome, QueueDepth, Reactor, mutated};
use flowstone_reactor::RingUser;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};
use slab::Slab;

use crate::blocking::skip;
use crate::descriptor::Descriptors;
use crate::direct::{Bounce, Bounces};
use crate::not_begun::NotBegun;
use crate::pool::PoolChannel;
use crate::zeroes::is_unsupported;
use crate::{FileChannel, FileCompletion, FileOp, FileRequest, MemoryList};

/// A queue's share of its thread's ring.
pub(crate) struct UringChannel {
    ring: RingUser,
    file: Arc<Descriptors>,
    pool: PoolChannel,
    in_flight: Slab<InFlight>,
    /// Requests with a bounce buffer.
    bounces: Bounces,
    /// Completions of requests that could not be started.
    refused: Vec<FileCompletion>,
    /// Requests in flight that the ring has returned unstarted.
    not_begun: NotBegun,
}

/// A request in the kernel.
struct InFlight {
    request: FileRequest,
    /// Bytes moved by short transfers so far.
    moved: u64,
    /// The remaining memory after a short transfer; its address is passed to the kernel.
    rest: Vec<IoVec>,
    /// The bounce buffer for memory that direct I/O cannot take.
    bounce: Option<Bounce>,
    /// Number of times that the ring has returned it unstarted.
    refusals: u32,
}

impl UringChannel {
    pub fn new(
        file: Arc<Descriptors>,
        pool: PoolChannel,
        depth: QueueDepth,
        reactor: &Reactor,
    ) -> io::Result<Self> {
        let ring = RingUser::new(reactor, u32::from(depth.0.max(8)).next_power_of_two())?;
        let in_flight = Slab::with_capacity(usize::from(depth.0));
        let (bounces, refused, not_begun) = Default::default();
        Ok(Self { ring, file, pool, in_flight, bounces, refused, not_begun })
    }

    /// Submits a request, or its rest, to the ring. The memory of a write may have been lost since
    /// the last check, and then holds zeroes.
    fn start(&mut self, index: usize) {
        let is_lost = self.in_flight[index].request.is_lost();
        let is_lost = mutated("fileio.uring.resumes-from-lost-memory", is_lost, false);
        if is_lost {
            return self.give_up_lost(index);
        }
        let entry = entry_for(&self.file, &self.in_flight[index]);
        // SAFETY: memory named by the entry lives in `in_flight` or is vouched for by the
        // request's MemoryList, and both outlast the completion (see Drop), as does the file.
        unsafe { self.ring.push(entry, index as u32) };
    }

    #[cold]
    fn give_up_lost(&mut self, index: usize) {
        let was_asked = self.in_flight[index].moved > 0;
        let tag = self.remove(index).tag;
        self.refused.push(match was_asked {
            true => FileCompletion::new(tag, Err(Errno::FAULT)),
            false => FileCompletion::refused(tag, Errno::FAULT),
        });
    }

    /// Starts a request that needs a bounce buffer. A refusal makes room for the next one.
    fn start_bounced(&mut self, request: FileRequest) {
        let mut next = Some(request);
        while let Some(request) = next.take() {
            match Bounce::new(&request) {
                Ok(bounce) => self.insert(request, Some(bounce)),
                Err(errno) => {
                    let tag = request.tag;
                    self.refused.push(FileCompletion::refused(tag, errno));
                    next = self.bounces.ended();
                }
            }
        }
    }

    fn insert(&mut self, request: FileRequest, bounce: Option<Bounce>) {
        let rest = Vec::new();
        let refusals = 0;
        let index = self.in_flight.insert(InFlight { request, moved: 0, rest, bounce, refusals });
        self.start(index);
    }

    /// Removes a request that has ended here.
    fn remove(&mut self, index: usize) -> FileRequest {
        let InFlight { request, bounce, .. } = self.in_flight.remove(index);
        if bounce.is_some()
            && let Some(next) = self.bounces.ended()
        {
            self.start_bounced(next);
        }
        request
    }

    fn finish(&mut self, index: usize, result: i32, done: &mut Vec<FileCompletion>) {
        match self.in_flight[index].advance(result) {
            Progress::Done(outcome) => {
                let request = self.remove(index);
                self.file.carried_out(&request, outcome);
                done.push(FileCompletion::new(request.tag, request.believe(outcome)));
            }
            Progress::Again => self.start(index),
            Progress::Unsupported => self.give_to_the_pool(index),
            Progress::NotBegun => {
                self.in_flight[index].refusals += 1;
                let refusals = self.in_flight[index].refusals;
                if !self.not_begun.put_off(index, refusals, Instant::now()) {
                    self.give_to_the_pool(index);
                }
            }
        }
    }

    fn give_to_the_pool(&mut self, index: usize) {
        let request = self.remove(index);
        self.pool.submit(request);
        self.pool.kick();
    }

    /// Retries requests that the ring did not start and whose retry is due.
    fn start_put_off(&mut self) {
        if self.not_begun.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some(index) = self.not_begun.take_due(now) {
            self.start(index);
        }
    }

    fn collect(&mut self, done: &mut Vec<FileCompletion>) {
        while let Some((mark, result)) = self.ring.next_completion() {
            self.finish(mark as usize, result, done);
        }
    }
}

impl FileChannel for UringChannel {
    fn submit(&mut self, request: FileRequest) {
        // The ring would copy what is in the page cache during the submission, and a worker of the
        // ring that copies long is missed by all disks of the thread.
        let copies_long = self.file.direct.is_none() && request.is_long_copy();
        let copies_long = mutated("fileio.uring.copies-any-length", copies_long, false);
        if copies_long || goes_to_the_pool(request.op) {
            return self.pool.submit(request);
        }
        if !Bounce::is_needed(self.file.direct.as_ref(), &request) {
            return self.insert(request, None);
        }
        if let Some(request) = self.bounces.admit(request) {
            self.start_bounced(request);
        }
    }

    fn kick(&mut self) {
        self.pool.kick();
        self.ring.submit();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.collect(done);
        if self.ring.bring_out() {
            self.collect(done);
        }
        self.pool.reap(done);
        done.append(&mut self.refused);
        self.start_put_off();
        // A resumed transfer must not wait for the next batch.
        self.kick();
    }

    fn next_look(&mut self) -> NextLook {
        let has_something = !self.refused.is_empty() || self.ring.has_mail();
        NextLook::now_if(has_something).min(self.pool.next_look()).min(self.not_begun.next_look())
    }

    fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.pool.is_idle()
    }
}

impl Drop for UringChannel {
    /// Waits until the kernel has released the memory of every request.
    fn drop(&mut self) {
        let mut done = Vec::new();
        self.kick();
        loop {
            // The pool's channel waits for its own requests when dropped.
            while let Some(index) = self.not_begun.take() {
                self.give_to_the_pool(index);
            }
            if self.in_flight.is_empty() {
                break;
            }
            self.ring.wait();
            self.collect(&mut done);
        }
    }
}

/// The meaning of a completion for its request.
enum Progress {
    Done(Outcome),
    Again,
    Unsupported,
    NotBegun,
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
        if let Some(bounce) = &mut self.bounce
            && let Err(errno) = bounce.advance(&self.request, moved as usize)
        {
            return Progress::Done(Err(errno));
        }
        if self.moved >= bytes {
            return Progress::Done(Ok(()));
        }
        if moved == 0 {
            // End of file inside the request: the file has been truncated.
            return Progress::Done(Err(Errno::IO));
        }
        if self.bounce.is_none() {
            self.rest = skip(self.request.memory.pieces(), self.moved as usize);
        }
        Progress::Again
    }

    fn failed(&mut self, errno: Errno) -> Progress {
        let is_hint = self.request.write_stream > 0;
        let is_hint = mutated("fileio.uring.insists-on-a-stream", is_hint, false);
        let space = matches!(self.request.op, FileOp::Zero { .. } | FileOp::Allocate { .. });
        match errno {
            Errno::INTR => Progress::Again,
            // The ring would not wait for the device; a thread of the pool will.
            Errno::AGAIN => Progress::Unsupported,
            // The kernel needed a worker thread and could not start one (a limit of processes). We
            // cancel no requests ourselves.
            Errno::CANCELED => {
                let (not_begun, failed) = (Progress::NotBegun, Progress::Done(Err(errno)));
                mutated("fileio.uring.takes-what-was-not-begun-for-failed", not_begun, failed)
            }
            // The device has lost its streams. They are a hint.
            Errno::INVAL if is_hint => {
                self.request.write_stream = 0;
                Progress::Again
            }
            errno if space && is_unsupported(errno) => Progress::Unsupported,
            _ => Progress::Done(Err(errno)),
        }
    }

    /// Returns the memory of the current transfer.
    fn pieces(&self) -> &[IoVec] {
        match &self.bounce {
            Some(bounce) => bounce.pieces(),
            None if self.moved == 0 => self.request.memory.pieces(),
            None => &self.rest,
        }
    }
}

/// Returns whether an operation goes to the pool: these look for holes first, for which a ring has
/// no operation; and a ring would pass operations that lock a file to a worker anyway.
const fn goes_to_the_pool(op: FileOp) -> bool {
    matches!(op, FileOp::Punch { .. } | FileOp::Discard { .. } | FileOp::Clear { .. })
}

/// Makes the submission entry of the rest of a request.
fn entry_for(files: &Descriptors, in_flight: &InFlight) -> squeue::Entry {
    let request = remaining(in_flight);
    let file = Fd(files.file.as_raw_fd());
    let pieces = request.memory.pieces();
    let first = pieces.as_ptr().cast::<libc::iovec>();
    let count = pieces.len() as u32;
    let flags = files.flags(&request);
    let stream = mutated("fileio.uring.names-no-stream", request.write_stream, 0);
    match request.op {
        FileOp::Read { offset, .. } => {
            let file = Fd(files.to_read(&request).as_raw_fd());
            match pieces {
                [only] => opcode::Read::new(file, only.address(), only.bytes() as u32)
                    .offset(offset.get())
                    .rw_flags(flags)
                    .build(),
                _ => opcode::Readv::new(file, first, count)
                    .offset(offset.get())
                    .rw_flags(flags)
                    .build(),
            }
        }
        FileOp::Write { offset, .. } => match pieces {
            [only] => opcode::Write::new(file, only.address(), only.bytes() as u32)
                .offset(offset.get())
                .rw_flags(flags)
                .write_stream(stream)
                .build(),
            _ => opcode::Writev::new(file, first, count)
                .offset(offset.get())
                .rw_flags(flags)
                .write_stream(stream)
                .build(),
        },
        FileOp::Datasync => {
            opcode::Fsync::new(Fd(files.to_sync().as_raw_fd())).flags(FsyncFlags::DATASYNC).build()
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

/// Returns the request without the part that short transfers have already moved.
fn remaining(in_flight: &InFlight) -> FileRequest {
    let (mut request, moved) = (in_flight.request, in_flight.moved);
    request.op = request.op.part(moved, request.op.moved_bytes() - moved);
    if let FileOp::Write { durable, .. } = &mut request.op {
        let first_only = *durable && moved == 0;
        let is_durable = mutated("fileio.uring.resumes-not-durable", *durable, first_only);
        *durable = is_durable;
    }
    // SAFETY: `rest` moves only when the next short transfer replaces it, and its heap memory
    // stays where it is while the slab entry itself moves.
    request.memory = unsafe { MemoryList::new(in_flight.pieces()) };
    request
}

#[cfg(test)]
mod tests;
