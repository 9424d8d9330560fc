//! The `sync` engine: a pool of threads making blocking calls, for hosts without io_uring, and for
//! the few operations that io_uring does not have.
//!
//! Threads start when there is work and none is idle, and end after a while without work, so an
//! idle disk has none.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, NextLook, Reactor, Waker, lock, mutated};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::error;

use crate::blocking;
use crate::descriptor::Descriptors;
use crate::{FileChannel, FileCompletion, FileRequest};

const THREADS_MAX: usize = 16;
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before another try after no thread could be started.
const RETRY: Duration = Duration::from_millis(10);

/// The threads of one file, shared by its queues.
pub(crate) struct Pool {
    state: Mutex<State>,
    work: Condvar,
    /// Starts a thread that serves the pool.
    start: fn(Arc<Self>) -> io::Result<()>,
    /// CPUs of the thread that opened the file. A thread of the pool is started by one that runs
    /// queues, which may be pinned.
    cpus: Option<CpuSet>,
}

impl Default for Pool {
    fn default() -> Self {
        let start = |pool: Arc<Self>| {
            let builder = thread::Builder::new().name("flowstone-sync".into());
            builder.spawn(move || pool.serve()).map(drop)
        };
        let cpus = sched_getaffinity(None).ok();
        Self { state: Mutex::default(), work: Condvar::new(), start, cpus }
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

struct Job {
    file: Arc<Descriptors>,
    request: FileRequest,
    reply_to: Arc<CompletionQueue>,
}

/// Completions for one channel, delivered by the pool's threads.
struct CompletionQueue {
    done: Mutex<Vec<FileCompletion>>,
    /// Set if it is not empty.
    full: AtomicBool,
    waker: Arc<Waker>,
}

impl Job {
    /// Carries out the request. It is completed even if its call panics, and the thread goes on:
    /// the queue waits for each completion, and the next request for the thread.
    fn run(self) {
        let Self { file, request, reply_to } = self;
        let execute = || blocking::execute(&file, &request);
        let catches = mutated("fileio.pool.dies-with-its-request", true, false);
        let completion = match catches {
            true => catch_unwind(AssertUnwindSafe(execute))
                .unwrap_or_else(|_| failed_by_panic(&request)),
            false => execute(),
        };
        // Before the completion: its receiver may be the last user of the file, and the lock must
        // end with that use, not with this thread's.
        drop(file);
        reply_to.deliver(completion);
    }
}

/// Makes the completion of a request whose call panicked. The host may have been asked: a sync that
/// ends so has failed.
#[cold]
fn failed_by_panic(request: &FileRequest) -> FileCompletion {
    error!("a request of a file has made its thread panic, and fails: {:?}", request.op);
    FileCompletion::new(request.tag, Err(Errno::IO))
}

impl Pool {
    fn enqueue(self: &Arc<Self>, jobs: impl Iterator<Item = Job>) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.jobs.extend(jobs);
        let wanted = state.jobs.len().saturating_sub(state.idle);
        let most = mutated("fileio.pool.has-any-number-of-threads", THREADS_MAX, usize::MAX);
        let started = wanted.min(most - state.threads);
        for _ in 0..started {
            match (self.start)(Arc::clone(self)) {
                Ok(()) => state.threads += 1,
                // Fewer threads are slower; with none, no request completes.
                Err(error) if state.threads == 0 => return Err(error),
                Err(_) => break,
            }
        }
        drop(state);
        self.work.notify_all();
        Ok(())
    }

    /// Takes a waiting job. The lock is released before this returns, so that running the job does
    /// not keep other queues from adding theirs.
    fn take_job(&self) -> Option<Job> {
        lock(&self.state).jobs.pop_front()
    }

    fn serve(&self) {
        self.unpin();
        while let Some(job) = self.next_job() {
            job.run();
        }
    }

    fn unpin(&self) {
        if let Some(cpus) = &self.cpus {
            // If that is refused, it shares a queue's CPU.
            let _ = sched_setaffinity(None, cpus);
        }
    }

    /// Returns the next job, or `None` when this thread has been idle for long enough to end.
    fn next_job(&self) -> Option<Job> {
        let mut state = lock(&self.state);
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

impl CompletionQueue {
    fn deliver(&self, completion: FileCompletion) {
        lock(&self.done).push(completion);
        self.full.store(true, Ordering::Release);
        self.waker.wake();
    }

    fn has_completions(&self) -> bool {
        self.full.load(Ordering::Acquire)
    }

    fn take(&self, done: &mut Vec<FileCompletion>) -> usize {
        // Cleared before the list is taken: later completions set it again.
        self.full.store(false, Ordering::Release);
        let mut mine = lock(&self.done);
        let count = mine.len();
        done.append(&mut mine);
        count
    }
}

/// One queue's channel into the pool.
pub(crate) struct PoolChannel {
    pool: Arc<Pool>,
    file: Arc<Descriptors>,
    completions: Arc<CompletionQueue>,
    reactor: Reactor,
    batch: Vec<FileRequest>,
    in_flight: usize,
    /// When to try again to start a thread for waiting requests.
    retry_at: Option<Instant>,
}

impl PoolChannel {
    pub fn new(pool: Arc<Pool>, file: Arc<Descriptors>, reactor: &Reactor) -> Self {
        let (done, full, waker) = (Mutex::default(), AtomicBool::new(false), reactor.waker());
        let completions = Arc::new(CompletionQueue { done, full, waker });
        let reactor = reactor.clone();
        let (batch, in_flight, retry_at) = (Vec::new(), 0, None);
        Self { pool, file, completions, reactor, batch, in_flight, retry_at }
    }

    /// Handles the outcome of queueing requests. If no thread could be started, the queue's own
    /// thread carries them out this once, unless the file may wait for a server: other disks may
    /// need the thread.
    fn queued(&mut self, outcome: io::Result<()>) {
        self.retry_at = None;
        if outcome.is_ok() {
            return;
        }
        let asks_server = mutated("fileio.pool.asks-a-server-itself", self.file.asks_server, false);
        if asks_server {
            self.retry_at = Some(Instant::now() + RETRY);
            return;
        }
        while let Some(job) = self.pool.take_job() {
            job.run();
        }
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
        let (file, completions) = (&self.file, &self.completions);
        let jobs = self.batch.drain(..).map(|request| Job {
            file: Arc::clone(file),
            request,
            reply_to: Arc::clone(completions),
        });
        let queued = self.pool.enqueue(jobs);
        self.queued(queued);
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        if self.retry_at.is_some_and(|at| at <= Instant::now()) {
            let queued = self.pool.enqueue(std::iter::empty());
            self.queued(queued);
        }
        if self.completions.has_completions() {
            self.in_flight -= self.completions.take(done);
        }
    }

    fn next_look(&mut self) -> NextLook {
        self.kick();
        let retry = self.retry_at.map_or(NextLook::OnWake, NextLook::At);
        NextLook::now_if(self.completions.has_completions()).min(retry)
    }

    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.batch.is_empty()
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
            let reactor = self.reactor.clone();
            reactor.sleep(|| self.next_look());
        }
    }
}

#[cfg(test)]
mod tests;
