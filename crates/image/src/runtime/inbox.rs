//! Commands of queues and tools to the maintenance worker of an image, and its replies.
//!
//! Each caller gets its own reply. When the worker ends, for any reason, all waiting callers get an
//! error.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Clock, Errno, Outcome};

/// Interval at which a waiting caller is told the progress of its command.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// Work besides commands that the maintenance worker has not taken yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// A maintenance pass may be due.
    pub pass: bool,
    /// The worker must end.
    pub stop: bool,
}

/// Commands and wake-ups for the maintenance worker.
pub struct Inbox<Command> {
    state: Mutex<State<Command>>,
    wakeup: Condvar,
    /// Progress of the running command: work done, and work in all.
    progress: [AtomicU64; 2],
    clock: Clock,
}

struct State<Command> {
    commands: VecDeque<(Command, ReplySender)>,
    pending_work: PendingWork,
    /// The worker has ended.
    closed: bool,
}

/// Sender of the maintenance worker's reply.
pub struct ReplySender(SyncSender<Outcome>);

impl ReplySender {
    /// Sends the outcome to the caller, if it still waits.
    pub fn send(self, outcome: Outcome) {
        let _ = self.0.send(outcome);
    }
}

/// The reply to one command.
pub struct Reply(Receiver<Outcome>);

impl Reply {
    /// Waits for the reply. It is EIO if the worker ends before it has carried out the command.
    pub fn wait(self) -> Outcome {
        self.0.recv().unwrap_or(Err(Errno::IO))
    }

    /// Waits like [`wait`](Self::wait), and reports progress regularly: work done, and work in all.
    pub fn wait_telling<Command>(
        self,
        inbox: &Inbox<Command>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Outcome {
        loop {
            match self.0.recv_timeout(PROGRESS_PERIOD) {
                Ok(outcome) => return outcome,
                Err(RecvTimeoutError::Disconnected) => return Err(Errno::IO),
                Err(RecvTimeoutError::Timeout) => {
                    let [done, all] = &inbox.progress;
                    progress(done.load(Ordering::Relaxed), all.load(Ordering::Relaxed));
                }
            }
        }
    }
}

impl<Command> Default for Inbox<Command> {
    fn default() -> Self {
        Self::new(Clock::default())
    }
}

impl<Command> Inbox<Command> {
    /// An empty inbox. Deadlines are by this clock.
    pub fn new(clock: Clock) -> Self {
        let state = State {
            commands: VecDeque::new(),
            pending_work: PendingWork::default(),
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            wakeup: Condvar::new(),
            progress: Default::default(),
            clock,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<Command>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the worker for a maintenance pass.
    pub fn schedule_pass(&self) {
        self.state().pending_work.pass = true;
        self.wakeup.notify_one();
    }

    /// Queues a command and returns its reply.
    pub fn ask(&self, command: Command) -> Reply {
        let (sender, reply) = sync_channel(1);
        let mut state = self.state();
        if !state.closed {
            state.commands.push_back((command, ReplySender(sender)));
            state.pending_work.pass = true;
            self.wakeup.notify_one();
        }
        Reply(reply)
    }

    /// Tells the worker to end.
    pub fn stop(&self) {
        self.state().pending_work.stop = true;
        self.wakeup.notify_one();
    }

    /// For the worker: sleeps until there is work or the deadline, and takes the work. Commands
    /// stay for [`take_commands`](Self::take_commands).
    pub fn wait(&self, deadline: Option<Instant>) -> PendingWork {
        let mut state = self.state();
        loop {
            if state.pending_work != PendingWork::default() {
                let taken = state.pending_work;
                state.pending_work.pass = false;
                return taken;
            }
            state = match deadline {
                None => self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(self.clock.now());
                    if left.is_zero() {
                        return PendingWork::default();
                    }
                    let woken = self.wakeup.wait_timeout(state, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// For the worker: takes all queued commands. Commands that come meanwhile wake it again, so
    /// that other work gets its turn between them.
    pub fn take_commands(&self) -> VecDeque<(Command, ReplySender)> {
        std::mem::take(&mut self.state().commands)
    }

    /// For the worker: returns whether there is work that it has not taken; does not block.
    pub fn is_called(&self) -> bool {
        self.state().pending_work != PendingWork::default()
    }

    /// For the worker: returns whether it must end; does not block.
    pub fn is_stopping(&self) -> bool {
        self.state().pending_work.stop
    }

    /// For the worker: publishes the progress of the running command.
    pub fn set_progress(&self, done: u64, all: u64) {
        self.progress[0].store(done, Ordering::Relaxed);
        self.progress[1].store(all, Ordering::Relaxed);
    }

    /// Marks the worker as ended: all waiting commands fail, and so do later ones.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.commands.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of two tools that sent commands at once, one could get the reply to the other's command.
    #[test]
    fn each_caller_gets_a_reply_of_its_own() {
        let inbox = Inbox::default();
        let replies = [Ok(()), Err(Errno::NOSPC), Err(Errno::BUSY)].map(|it| (inbox.ask(it), it));
        assert_eq!(inbox.wait(None), PendingWork { pass: true, stop: false });
        for (command, reply) in inbox.take_commands() {
            reply.send(command);
        }
        for (reply, expected) in replies {
            assert_eq!(reply.wait(), expected);
        }
        assert_eq!(inbox.wait(Some(Instant::now())), PendingWork::default());
    }

    #[test]
    fn a_worker_that_ends_fails_those_who_wait_and_those_who_come_later() {
        let inbox = Inbox::default();
        let [taken, left] = [(); 2].map(|()| inbox.ask(()));
        drop(inbox.state().commands.pop_front());
        inbox.close();
        let late = inbox.ask(());
        for reply in [taken, left, late] {
            assert_eq!(reply.wait(), Err(Errno::IO));
        }
    }

    #[test]
    fn commands_that_come_while_others_are_carried_out_wait_for_the_next_turn() {
        let inbox = Inbox::default();
        let mut replies = vec![inbox.ask(1), inbox.ask(2)];
        inbox.wait(None);
        for (command, reply) in inbox.take_commands() {
            replies.push(inbox.ask(command + 10));
            reply.send(Ok(()));
        }
        assert_eq!(inbox.wait(None), PendingWork { pass: true, stop: false });
        let left: Vec<i32> =
            inbox.take_commands().into_iter().map(|(command, _)| command).collect();
        assert_eq!(left, [11, 12]);
    }

    #[test]
    fn a_call_to_end_stays() {
        let inbox = Inbox::<()>::default();
        inbox.stop();
        for _ in 0..2 {
            assert!(inbox.wait(None).stop && inbox.is_stopping());
        }
    }

    #[test]
    fn progress_is_told_to_those_who_wait() {
        let inbox = Inbox::default();
        let reply = inbox.ask(());
        inbox.set_progress(3, 7);
        let mut told = Vec::new();
        let mut next = inbox.take_commands().pop_front();
        let outcome = reply.wait_telling(&inbox, &mut |done, all| {
            told.push((done, all));
            if let Some((_, reply)) = next.take() {
                reply.send(Ok(()));
            }
        });
        assert_eq!((outcome, told), (Ok(()), vec![(3, 7)]));
    }
}
