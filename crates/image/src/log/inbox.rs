//! What queues and tools want of the keeper, the thread behind an image.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flowstone_block::Outcome;

/// Work that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// The disk has another size, in sectors, and may use so many segments.
    Resize { capacity: u64, segments: u32 },
    /// Put live blocks in order and give back what is dead.
    Compact,
}

/// Wishes that the keeper has not looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Something may be due: segments, a checkpoint, cleaning.
    pub look: bool,
    /// End, after a last checkpoint.
    pub stop: bool,
}

/// The keeper's mailbox.
#[derive(Default)]
pub struct Inbox {
    wishes: Mutex<Wishes>,
    bell: Condvar,
    commands: Mutex<VecDeque<(Command, SyncSender<Outcome>)>>,
    closed: AtomicBool,
    /// Blocks of the disk that `compact` has dealt with.
    sorted: AtomicU64,
}

impl Inbox {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the keeper to look around.
    pub fn look(&self) {
        self.wishes().look = true;
        self.bell.notify_one();
    }

    /// Asks for work; the answer comes when it is done. If there is no keeper to do it, the sender
    /// is gone.
    pub fn ask(&self, command: Command) -> Receiver<Outcome> {
        let (reply, answer) = sync_channel(1);
        {
            let mut commands = self.commands();
            if self.closed.load(Ordering::Relaxed) {
                return answer;
            }
            commands.push_back((command, reply));
        }
        self.look();
        answer
    }

    /// How far `compact` has come: blocks of the disk.
    pub fn sorted(&self) -> u64 {
        self.sorted.load(Ordering::Relaxed)
    }

    /// For the keeper: how far it has come.
    pub fn tell_sorted(&self, blocks: u64) {
        self.sorted.store(blocks, Ordering::Relaxed);
    }

    /// There is no keeper any more.
    pub fn close(&self) {
        let mut commands = self.commands();
        self.closed.store(true, Ordering::Relaxed);
        commands.clear();
    }

    /// The oldest work that nobody has taken.
    pub fn next_command(&self) -> Option<(Command, SyncSender<Outcome>)> {
        self.commands().pop_front()
    }

    fn commands(&self) -> MutexGuard<'_, VecDeque<(Command, SyncSender<Outcome>)>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the keeper to end.
    pub fn stop(&self) {
        self.wishes().stop = true;
        self.bell.notify_one();
    }

    /// Sleeps until there is a wish or the deadline, and takes what there is.
    pub fn wait(&self, deadline: Option<Instant>) -> Wishes {
        let mut wishes = self.wishes();
        loop {
            if wishes.look || wishes.stop {
                let taken = *wishes;
                wishes.look = false;
                return taken;
            }
            wishes = match deadline {
                None => self.bell.wait(wishes).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Wishes::default();
                    }
                    let waited = self.bell.wait_timeout(wishes, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Takes what there is, without waiting.
    pub fn peek_stop(&self) -> bool {
        self.wishes().stop
    }
}
