//! Requests of the kernel that need the source, from their arrival to their reply.
//!
//! A source may hang, and a call that hangs cannot be cancelled. So the threads that read requests
//! make calls to the source only while two of them stay free; beyond that, threads of a small pool
//! do; beyond that, requests are queued. A request can be answered even if its thread is stuck: the
//! first thread that takes the reply sends it. The watch thread takes the replies of killed callers
//! (fuser does not pass FUSE_INTERRUPT on), and, while the source is down, those of requests that
//! can be answered without it or are to fail.

mod owed;
mod probe;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use flowstone_memory::mutated;
use rustix::io::{Errno, Result};

pub use self::owed::{Ask, Nobody, Outcome, Owed, Reply};
use self::owed::{Asked, Request};
use self::probe::Probe;
use crate::callers::is_killed;
use crate::files::Files;
use crate::health::{Health, Heard, SourceState};
use crate::lock::lock;
use crate::options::TroubleOptions;

/// Threads of the pool.
const POOL_MAX: usize = 16;
/// Threads that read requests and are never in a call to the source.
const FREE_READERS: usize = 2;
/// Interval of checks while requests wait.
const LOOK: Duration = Duration::from_millis(200);
/// Interval of checks while none wait.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// All unanswered requests.
pub struct Requests {
    files: Arc<Files>,
    /// Most request threads that may be in a call to the source at the same time.
    inline_max: usize,
    fails_when_down: bool,
    table: Mutex<Table>,
    /// Signalled when the queue is not empty.
    queued: Condvar,
    probe: Probe,
}

#[derive(Default)]
struct Table {
    /// By number, so in order of arrival.
    open: BTreeMap<u64, Open>,
    next: u64,
    queue: VecDeque<u64>,
    inline: usize,
    pool: usize,
    idle: usize,
}

struct Open {
    request: Arc<dyn Request>,
    /// The task that waits for it; 0 if it is the kernel's own.
    task: u32,
    /// The start of its call to the source, if it has one.
    began: Option<Instant>,
}

impl Table {
    fn insert(&mut self, request: Arc<dyn Request>, task: u32, began: Option<Instant>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, Open { request, task, began });
        number
    }
}

/// A thread is in a call to the source until this is dropped.
struct Asking<'a> {
    requests: &'a Requests,
    number: u64,
    is_inline: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut table = lock(&self.requests.table);
        let open = table.open.remove(&self.number);
        table.inline -= usize::from(self.is_inline);
        drop(table);
        // May close a file of the source.
        drop(open);
    }
}

impl Requests {
    /// Starts the pool and the watch thread. `readers`: the number of threads that read requests.
    pub fn start(
        files: Arc<Files>,
        readers: usize,
        trouble: TroubleOptions,
    ) -> io::Result<Arc<Self>> {
        let inline_max = readers.saturating_sub(FREE_READERS);
        let inline_max = mutated("guest.requests.ask-on-all-threads", inline_max, readers);
        let requests = Arc::new(Self {
            files,
            inline_max,
            fails_when_down: trouble.fails_when_down,
            table: Mutex::default(),
            queued: Condvar::new(),
            probe: Probe::default(),
        });
        let it = requests.clone();
        Builder::new().name("probe".into()).spawn(move || it.probe.run(&it.files))?;
        let it = requests.clone();
        Builder::new().name("watch".into()).spawn(move || it.watch(trouble.timeout))?;
        Ok(requests)
    }

    /// Runs a request that needs the source: on this thread, or on another one.
    pub fn ask<R: Reply, T: Outcome + 'static>(
        self: &Arc<Self>,
        task: u32,
        reply: R,
        work: impl Fn(&Files, &Owed<R>, Ask) -> Option<Result<T>> + Send + Sync + 'static,
        send: impl Fn(&Files, R, T) + Send + Sync + 'static,
    ) {
        let request = Arc::new(Asked { owed: Owed::new(reply), work, send });
        if self.files.hearing.is_down() && !R::GIVES_BACK {
            if request.answer(&self.files, Ask::Memory) {
                return;
            }
            if self.fails_when_down {
                return request.fail(Errno::IO);
            }
        }
        match self.begin(request.clone(), task) {
            Some(_asking) => drop(request.answer(&self.files, Ask::Source)),
            None => self.queue(request, task),
        }
    }

    /// The same for a write, whose bytes are copied only if another thread has to do it.
    pub fn ask_with<R: Reply, T: Outcome + 'static>(
        self: &Arc<Self>,
        task: u32,
        reply: R,
        bytes: &[u8],
        work: impl Fn(&Files, &[u8]) -> Result<T> + Send + Sync + 'static,
        send: impl Fn(&Files, R, T) + Send + Sync + 'static,
    ) {
        let owed = Arc::new(Owed::new(reply));
        if !self.files.hearing.is_down()
            && let Some(_asking) = self.begin(owed.clone(), task)
        {
            let result = work(&self.files, bytes);
            self.files.hearing.heard(&result);
            return owed.give(&self.files, result, send);
        }
        let (Some(reply), bytes) = (owed.take(), bytes.to_vec()) else { return };
        let asks = move |files: &Files, _: &Owed<R>, ask| {
            (ask == Ask::Source).then(|| work(files, &bytes))
        };
        self.ask(task, reply, asks, send);
    }

    /// Runs a request on a thread of its own: it may wait for hours.
    pub fn ask_aside<R: Reply, T: Outcome + 'static>(
        self: &Arc<Self>,
        task: u32,
        reply: R,
        work: impl Fn(&Files) -> Result<T> + Send + 'static,
        send: impl Fn(&Files, R, T) + Send + 'static,
    ) {
        let (it, owed) = (self.clone(), Arc::new(Owed::new(reply)));
        let number = lock(&self.table).insert(owed.clone(), task, None);
        let aside = move || {
            let _asking = Asking { requests: &it, number, is_inline: false };
            owed.give(&it.files, work(&it.files), send);
        };
        if Builder::new().name("aside".into()).spawn(aside).is_err()
            && let Some(open) = lock(&self.table).open.remove(&number)
        {
            open.request.fail(Errno::NOLCK);
        }
    }

    /// Starts a call to the source on this thread, unless too many are in one.
    fn begin(&self, request: Arc<dyn Request>, task: u32) -> Option<Asking<'_>> {
        let mut table = lock(&self.table);
        if table.inline >= self.inline_max {
            return None;
        }
        table.inline += 1;
        let number = table.insert(request, task, Some(Instant::now()));
        Some(Asking { requests: self, number, is_inline: true })
    }

    /// Queues a request for the pool.
    fn queue(self: &Arc<Self>, request: Arc<dyn Request>, task: u32) {
        let mut table = lock(&self.table);
        let number = table.insert(request.clone(), task, None);
        table.queue.push_back(number);
        if table.queue.len() > table.idle && table.pool < POOL_MAX {
            let it = self.clone();
            let spawned = Builder::new().name("source".into()).spawn(move || it.work_off());
            table.pool += usize::from(spawned.is_ok());
        }
        if table.pool > 0 {
            self.queued.notify_one();
            return;
        }
        // No thread can be started: this one may hang.
        table.queue.pop_back();
        drop(table);
        let _asking = Asking { requests: self, number, is_inline: false };
        request.answer(&self.files, Ask::Source);
    }

    /// Runs a thread of the pool.
    fn work_off(&self) {
        let _counted = Counted(self);
        let mut table = lock(&self.table);
        loop {
            let Some(number) = table.queue.pop_front() else {
                table.idle += 1;
                table = self.queued.wait(table).unwrap_or_else(PoisonError::into_inner);
                table.idle -= 1;
                continue;
            };
            let Some(open) = table.open.get_mut(&number) else { continue };
            open.began = Some(Instant::now());
            let request = open.request.clone();
            drop(table);
            let asking = Asking { requests: self, number, is_inline: false };
            if !request.is_answered() {
                request.answer(&self.files, Ask::Source);
            }
            drop(request);
            drop(asking);
            table = lock(&self.table);
        }
    }

    /// Watches unanswered requests and the source.
    fn watch(&self, timeout: Duration) {
        let mut health = Health::new(timeout, Instant::now());
        let idle = IDLE_LOOK.min(timeout / 2).max(LOOK);
        let mut pause = idle;
        loop {
            thread::sleep(pause);
            let (waiting, oldest) = (self.waiting(), self.oldest());
            pause = if waiting.is_empty() { idle } else { LOOK };
            let (answered, failed) = self.files.hearing.since_last();
            let state = health.look(Instant::now(), Heard { answered, failed, oldest });
            self.files.hearing.set(state);
            if state != SourceState::Up {
                self.probe.ask();
            }
            for (request, task) in waiting.into_iter().filter(|(it, _)| !it.gives_back()) {
                let gives_up = mutated("guest.requests.wait-though-killed", is_killed(task), false);
                if gives_up {
                    request.fail(Errno::INTR);
                } else if self.files.hearing.is_down()
                    && !request.answer(&self.files, Ask::Memory)
                    && self.fails_when_down
                {
                    request.fail(Errno::IO);
                }
            }
        }
    }

    /// Returns the unanswered requests, with their tasks.
    fn waiting(&self) -> Vec<(Arc<dyn Request>, u32)> {
        let table = lock(&self.table);
        let open = table.open.values().filter(|open| !open.request.is_answered());
        open.map(|open| (open.request.clone(), open.task)).collect()
    }

    /// Returns the start of the oldest call that has not returned, answered or not.
    fn oldest(&self) -> Option<Instant> {
        let table = lock(&self.table);
        let asked = table.open.values().filter_map(|open| open.began);
        asked.chain(self.files.hearing.oldest()).min()
    }
}

/// Counts a thread of the pool until it ends, which it does only by a panic.
struct Counted<'a>(&'a Requests);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        lock(&self.0.table).pool -= 1;
    }
}

#[cfg(test)]
mod tests;
