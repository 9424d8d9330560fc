//! What queues and tools ask of the maintenance worker.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flowstone_block::Outcome;

/// Work that has a reply.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// The disk has another size, in sectors, and may use so many segments.
    Resize { capacity: u64, segments: u32 },
    /// Put live blocks in order and give back what is dead.
    Compact,
}

/// Work that the maintenance worker has not taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// Something may be due: segments, a checkpoint, cleaning.
    pub pass: bool,
    /// End, after a last checkpoint.
    pub stop: bool,
}

/// Commands and pending work of the maintenance worker.
#[derive(Default)]
pub struct Inbox {
    pending_work: Mutex<PendingWork>,
    wakeup: Condvar,
    commands: Mutex<VecDeque<(Command, SyncSender<Outcome>)>>,
    closed: AtomicBool,
    /// Blocks of the disk that `compact` has dealt with.
    sorted: AtomicU64,
}

impl Inbox {
    fn pending_work(&self) -> MutexGuard<'_, PendingWork> {
        self.pending_work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Schedules a maintenance pass.
    pub fn schedule_pass(&self) {
        self.pending_work().pass = true;
        self.wakeup.notify_one();
    }

    /// Asks for work; the answer comes when it is done. If there is no maintenance worker to do it,
    /// the sender is gone.
    pub fn ask(&self, command: Command) -> Receiver<Outcome> {
        let (reply, answer) = sync_channel(1);
        {
            let mut commands = self.commands();
            if self.closed.load(Ordering::Relaxed) {
                return answer;
            }
            commands.push_back((command, reply));
        }
        self.schedule_pass();
        answer
    }

    /// How far `compact` has come: blocks of the disk.
    pub fn sorted(&self) -> u64 {
        self.sorted.load(Ordering::Relaxed)
    }

    /// For the maintenance worker: how far it has come.
    pub fn set_sorted(&self, blocks: u64) {
        self.sorted.store(blocks, Ordering::Relaxed);
    }

    /// The maintenance worker is gone: commands that wait for it fail.
    pub fn close(&self) {
        let mut commands = self.commands();
        self.closed.store(true, Ordering::Relaxed);
        commands.clear();
    }

    /// The oldest command that has not been taken.
    pub fn next_command(&self) -> Option<(Command, SyncSender<Outcome>)> {
        self.commands().pop_front()
    }

    fn commands(&self) -> MutexGuard<'_, VecDeque<(Command, SyncSender<Outcome>)>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the maintenance worker to end.
    pub fn stop(&self) {
        self.pending_work().stop = true;
        self.wakeup.notify_one();
    }

    /// Sleeps until there is work or the deadline, and takes the work.
    pub fn wait(&self, deadline: Option<Instant>) -> PendingWork {
        let mut pending_work = self.pending_work();
        loop {
            if pending_work.pass || pending_work.stop {
                let taken = *pending_work;
                pending_work.pass = false;
                return taken;
            }
            pending_work = match deadline {
                None => self.wakeup.wait(pending_work).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return PendingWork::default();
                    }
                    let waited = self.wakeup.wait_timeout(pending_work, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Whether the worker is to end; does not wait.
    pub fn is_stopping(&self) -> bool {
        self.pending_work().stop
    }
}
