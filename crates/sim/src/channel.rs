//! The channel of a queue to a simulated disk, and the execution order of its requests.

use std::mem;

use fastrand::Rng;
use flowstone_block::{Errno, NextLook, gather, scatter};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};

use super::schedule::Schedule;
use super::state::{Shared, Work};

/// The channel of a queue to a [`SimDisk`](super::SimDisk).
pub struct SimChannel {
    state: Shared,
    /// `None` if requests are executed in order.
    random: Option<Rng>,
    submitted: Vec<InFlight>,
    started: Vec<InFlight>,
    done: Vec<FileCompletion>,
}

struct InFlight {
    request: FileRequest,
    work: Work,
}

impl SimChannel {
    /// Makes the `number`-th channel of a disk.
    pub fn new(state: Shared, schedule: Schedule, number: u64) -> Self {
        let random = match schedule {
            Schedule::InOrder => None,
            // Adjacent seeds give unrelated numbers, so a sum suffices.
            Schedule::Shuffled { seed } => Some(Rng::with_seed(seed.wrapping_add(number << 32))),
        };
        let (submitted, started, done) = Default::default();
        Self { state, random, submitted, started, done }
    }

    fn complete(&mut self, in_flight: InFlight) {
        let InFlight { request, work } = in_flight;
        let outcome = self.state.lock().complete(work, |found| {
            scatter(found, request.memory.pieces(), 0);
        });
        self.done.push(FileCompletion::new(request.tag, outcome));
    }

    /// Executes this many of the started requests, in the order of the schedule.
    fn complete_some(&mut self, count: usize) {
        for _ in 0..count {
            let next = match &mut self.random {
                Some(random) => {
                    let any = random.usize(..self.started.len());
                    self.started.swap_remove(any)
                }
                None => self.started.remove(0),
            };
            self.complete(next);
        }
    }

    /// Executes a random number of requests, at least `least` if there are that many.
    fn complete_any(&mut self, least: usize) {
        let most = self.started.len();
        let Some(random) = &mut self.random else { return };
        let count = random.usize(least.min(most)..=most);
        self.complete_some(count);
    }
}

impl FileChannel for SimChannel {
    fn submit(&mut self, request: FileRequest) {
        let pieces = request.memory.pieces();
        let held: usize = pieces.iter().map(|piece| piece.bytes()).sum();
        let work = match request.op {
            FileOp::Read { bytes, .. } | FileOp::Write { bytes, .. } if bytes != held as u64 => {
                Work::Answer(Err(Errno::INVAL))
            }
            op => self.state.lock().begin(op, || {
                let mut data = vec![0; held];
                gather(pieces, 0, &mut data);
                data.into()
            }),
        };
        self.submitted.push(InFlight { request, work });
    }

    fn kick(&mut self) {
        self.started.append(&mut self.submitted);
        if self.random.is_none() {
            for next in mem::take(&mut self.started) {
                self.complete(next);
            }
        }
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.complete_any(0);
        done.append(&mut self.done);
    }

    /// Before a thread sleeps, the disk executes some requests.
    fn next_look(&mut self) -> NextLook {
        self.kick();
        self.complete_any(1);
        NextLook::now_if(!self.done.is_empty())
    }
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        self.kick();
        self.complete_some(self.started.len());
    }
}
