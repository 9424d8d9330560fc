//! The `sync` engine: a pool of threads making blocking calls, for hosts without io_uring, and
//! for the few operations that io_uring does not have.
//!
//! Threads start when there is work and nobody idle, and end after a while without work, so an
//! idle disk keeps none.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use flowstone_block::{Doorbells, poll_doorbells};
use rustix::event::{EventfdFlags, eventfd};

use crate::blocking;
use crate::descriptor::QueueFile;
use crate::{FileChannel, FileCompletion, FileRequest};

const THREADS_MAX: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// The threads of one file, shared by its queues.
#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

struct Job {
    file: Arc<QueueFile>,
    request: FileRequest,
    reply_to: Arc<Mailbox>,
}

/// Where threads leave completions for one channel.
struct Mailbox {
    done: Mutex<Vec<FileCompletion>>,
    event: OwnedFd,
}

impl Job {
    fn run(self) {
        let Self { file, request, reply_to } = self;
        let outcome = blocking::execute(&file, &request);
        // Before the answer: whoever gets it may be the last to use the file, and its lock must go
        // when they let go of it, not when this thread does.
        drop(file);
        reply_to.deliver(FileCompletion { tag: request.tag, outcome });
    }
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        // A thread that panicked left the queue itself whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, jobs: impl Iterator<Item = Job>) -> io::Result<()> {
        let mut state = self.state();
        state.jobs.extend(jobs);
        let wanted = state.jobs.len().saturating_sub(state.idle);
        let started = wanted.min(THREADS_MAX - state.threads);
        for _ in 0..started {
            let pool = Arc::clone(self);
            let spawned =
                thread::Builder::new().name("flowstone-sync".into()).spawn(move || pool.serve());
            match spawned {
                Ok(_) => state.threads += 1,
                // Fewer threads are slower; none at all cannot work.
                Err(error) if state.threads == 0 => return Err(error),
                Err(_) => break,
            }
        }
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    fn serve(&self) {
        while let Some(job) = self.next_job() {
            job.run();
        }
    }

    /// The next job, or `None` when this thread has idled for long enough to end.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let (woken, timeout) =
                self.work.wait_timeout(state, IDLE_TIMEOUT).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl Mailbox {
    fn deliver(&self, completion: FileCompletion) {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).push(completion);
        // Only a full counter (2^64 - 2 deliveries not yet seen) could refuse this.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    fn take(&self, done: &mut Vec<FileCompletion>) -> usize {
        let mut mine = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let count = mine.len();
        done.append(&mut mine);
        count
    }
}

/// A queue's way to the pool.
pub(crate) struct PoolChannel {
    pool: Arc<Pool>,
    file: Arc<QueueFile>,
    mailbox: Arc<Mailbox>,
    batch: Vec<FileRequest>,
    in_flight: usize,
}

impl PoolChannel {
    pub fn new(pool: Arc<Pool>, file: Arc<QueueFile>) -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Arc::new(Mailbox { done: Mutex::default(), event });
        Ok(Self { pool, file, mailbox, batch: Vec::new(), in_flight: 0 })
    }

    /// Readable when there is something to reap.
    pub fn completion_event(&self) -> BorrowedFd<'_> {
        self.mailbox.event.as_fd()
    }

    /// Makes the event unreadable until the next delivery. Deliveries before this call are found
    /// by a later [`reap`](FileChannel::reap).
    pub fn clear_event(&self) {
        let _ = rustix::io::read(&self.mailbox.event, &mut [0; 8]);
    }

    /// How many requests have not been reaped yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight + self.batch.len()
    }
}

impl FileChannel for PoolChannel {
    fn submit(&mut self, request: FileRequest) {
        self.batch.push(request);
    }

    fn kick(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.in_flight += self.batch.len();
        let (file, mailbox) = (&self.file, &self.mailbox);
        let jobs = self.batch.drain(..).map(|request| Job {
            file: Arc::clone(file),
            request,
            reply_to: Arc::clone(mailbox),
        });
        if self.pool.enqueue(jobs).is_err() {
            // No thread could be started: the queue's own thread does the work this once.
            while let Some(job) = self.pool.state().jobs.pop_front() {
                job.run();
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        if self.in_flight == 0 {
            return;
        }
        match self.mailbox.take(done) {
            0 => {}
            taken => {
                self.in_flight -= taken;
                // Or the next sleep would end at once, for what is known already. A delivery in
                // between is found below; one after that rings again.
                self.clear_event();
                self.in_flight -= self.mailbox.take(done);
            }
        }
    }

    fn sleep(&mut self, bells: &Doorbells<'_>) {
        self.kick();
        poll_doorbells(bells, Some(self.mailbox.event.as_fd()));
        self.clear_event();
    }
}

impl Drop for PoolChannel {
    fn drop(&mut self) {
        self.kick();
        let mut done = Vec::new();
        loop {
            self.reap(&mut done);
            if self.in_flight == 0 {
                break;
            }
            self.sleep(&Doorbells { fds: &[], deadline: None });
        }
    }
}
