//! The slow-path pool: threads for requests that a queue cannot carry out without blocking: those
//! that need a table from the medium, the backing file, a compressed cluster, a copy, or free
//! clusters that do not exist yet; and zeroes that stay allocated. There are no threads before the
//! first such request. A request that makes its thread panic fails, and the thread goes on with the
//! next.

mod by_hand;
mod tables;
mod worker;
mod zeroes;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use flowstone_block::{Errno, Outcome, Request, lock};
use flowstone_image::runtime::completion_queue::{CompletionQueue, HandedOver};
use tracing::error;

pub use self::by_hand::SlowPathByHand;
#[cfg(test)]
pub use self::tables::TableRead;
pub use self::tables::{load, look};
pub use self::worker::SlowPathWorker;
use super::core::Core;

/// Maximum number of threads, and so of requests carried out at once.
const THREADS_MAX: usize = 16;

/// The threads, and the requests that wait for them.
pub struct SlowPath {
    core: Arc<Core>,
    state: Mutex<State>,
    wakeup: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<HandedOver>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    stopping: bool,
}

impl SlowPath {
    pub fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self { core, state: Mutex::default(), wakeup: Condvar::new() })
    }

    /// Takes over a request; it completes in the completion queue.
    pub fn submit(self: &Arc<Self>, request: Box<Request>, reply_to: &Arc<CompletionQueue>) {
        let mut state = lock(&self.state);
        state.jobs.push_back(HandedOver::new(request, reply_to));
        if self.core.is_by_hand() {
            return;
        }
        if state.idle >= state.jobs.len() {
            self.wakeup.notify_one();
        } else if state.threads.len() < THREADS_MAX {
            let slow_path = Arc::clone(self);
            let spawned = Builder::new()
                .name("slow-path".into())
                .stack_size(256 << 10)
                .spawn(move || slow_path.run());
            match spawned {
                Ok(thread) => state.threads.push(thread),
                Err(error) if state.threads.is_empty() => {
                    error!("{}: cannot start a thread: {error}", self.core.name);
                    let jobs: Vec<HandedOver> = state.jobs.drain(..).collect();
                    jobs.into_iter().for_each(|job| job.reply(Err(Errno::AGAIN)));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the number of threads.
    #[cfg(test)]
    pub fn threads(&self) -> usize {
        lock(&self.state).threads.len()
    }

    fn run(&self) {
        let mut worker = None;
        while let Some(job) = self.next() {
            if catch_unwind(AssertUnwindSafe(|| self.serve(job, &mut worker))).is_err() {
                error!("{}: a request has made its thread panic, and fails", self.core.name);
                // The state of a request that panicked is not reused.
                worker = None;
            }
        }
    }

    fn serve(&self, mut job: HandedOver, worker: &mut Option<SlowPathWorker>) {
        let outcome = self.carry_out(job.request(), worker);
        job.reply(outcome);
    }

    fn carry_out(&self, request: &mut Request, worker: &mut Option<SlowPathWorker>) -> Outcome {
        if worker.is_none() {
            let made = SlowPathWorker::new(Arc::clone(&self.core));
            *worker = Some(made.map_err(|it| Errno::from_io_error(&it).unwrap_or(Errno::IO))?);
        }
        worker.as_mut().expect("made above").serve(request)
    }

    fn next(&self) -> Option<HandedOver> {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.stopping {
                return None;
            }
            state.idle += 1;
            state = self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Ends the threads. Nothing may be submitted afterwards.
    pub fn stop(&self) {
        let threads = {
            let mut state = lock(&self.state);
            state.stopping = true;
            std::mem::take(&mut state.threads)
        };
        self.wakeup.notify_all();
        for thread in threads {
            if thread.join().is_err() {
                error!("{}: a thread of the slow-path pool has panicked", self.core.name);
            }
        }
    }
}
