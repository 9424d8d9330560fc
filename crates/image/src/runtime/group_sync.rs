//! Group sync: one `fdatasync` for all flushes that wait when it starts, from all queues of an
//! image.
//!
//! A queue that asks while no sync runs carries it out (it *leads*), and then carries out the next
//! one for the flushes that came meanwhile. The other queues sleep until their sync is done, and
//! only they are woken. A queue that is dropped leaves the lead to one of the waiting queues, and
//! so does the maintenance worker, whose syncs go through here too.
//!
//! Only one sync runs at a time, and none starts before all have learned the outcome of the
//! previous one: the host reports lost data to one caller only, and a sync that starts afterwards
//! succeeds. A durable write (`RWF_DSYNC`) is a sync too, of its own data: it runs only while no
//! sync does, and serves only itself.

use std::sync::{Arc, PoisonError};

use flowstone_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use flowstone_block::sync::{Mutex, MutexGuard};
use flowstone_block::{Completion, Errno, Outcome, mutated};
use flowstone_fileio::{BlockingFile, FileOp, FileRequest, MemoryList};

use crate::runtime::wakers::QueueWaker;

/// The number of the sync that will serve a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ticket(u64);

/// The syncs of one image.
#[derive(Default)]
pub struct GroupSync {
    state: Mutex<State>,
    finished: AtomicU64,
    /// Flushes wait for a sync without a leader: the queue that led is gone.
    orphaned: AtomicBool,
    /// After a failed sync the content of the medium is unknown: all later flushes fail.
    failed: AtomicBool,
}

#[derive(Default)]
struct State {
    running: bool,
    started: u64,
    /// Queues that wait for the running sync, besides its leader.
    waiting: Vec<Arc<QueueWaker>>,
    /// Queues that wait for the next sync.
    late: Vec<Arc<QueueWaker>>,
}

impl State {
    /// Starts a sync for the flushes that came too late for the previous one.
    fn start(&mut self) {
        self.running = true;
        self.started += 1;
        self.waiting = std::mem::take(&mut self.late);
    }
}

impl GroupSync {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests a sync that starts from now on. With `true`, the caller must carry it out; else
    /// `waker` is woken when it has ended.
    fn request(&self, waker: &Arc<QueueWaker>) -> (Ticket, bool) {
        let mut state = self.state();
        if !state.running {
            state.start();
            self.orphaned.store(false, Ordering::Release);
            return (Ticket(state.started), true);
        }
        state.late.push(Arc::clone(waker));
        let (begun, next) = (state.started, state.started + 1);
        let number = mutated("image.group-sync.joins-one-that-has-begun", next, begun);
        (Ticket(number), false)
    }

    /// With `true`, the caller must carry out a durable write as the next sync. It serves no flush,
    /// so it starts only when no flush waits.
    fn begin_write(&self) -> bool {
        let mut state = self.state();
        let is_free = !state.running && state.late.is_empty();
        if is_free {
            state.start();
        }
        mutated("image.group-sync.durable-write-beside-a-sync", is_free, true)
    }

    /// Ends the sync that the caller carried out. With `true`, it must carry out another, for
    /// flushes that came meanwhile; a caller that is `leaving` leaves that to one of their queues.
    fn finish(&self, succeeded: bool, leaving: bool) -> bool {
        let fails_first = mutated("image.group-sync.ends-before-it-fails", true, false);
        if !succeeded && fails_first {
            // Before the flushes see that they are served.
            self.fail();
        }
        let mut state = self.state();
        self.finished.store(state.started, Ordering::Release);
        if !succeeded && !fails_first {
            std::thread::sleep(std::time::Duration::from_millis(1));
            self.fail();
        }
        let mut served = std::mem::take(&mut state.waiting);
        state.running = false;
        let goes_on = !state.late.is_empty() && !leaving;
        if goes_on {
            state.start();
        } else if !state.late.is_empty() {
            self.orphaned.store(true, Ordering::Release);
            served.extend(state.late.iter().cloned());
        }
        drop(state);
        let wakes = mutated("image.group-sync.wakes-nobody", true, false);
        if wakes {
            served.iter().for_each(|waker| waker.wake());
        }
        goes_on
    }

    /// Takes the lead that another queue has left. With `true`, the caller must carry out a sync.
    fn take_over(&self) -> bool {
        let mut state = self.state();
        let orphaned = self.orphaned.swap(false, Ordering::AcqRel) && !state.running;
        if orphaned {
            state.start();
        }
        orphaned
    }

    /// Syncs for a thread that blocks on it, e.g. before the maintenance worker writes metadata
    /// that refers to data. Carries the sync out, or shares one that a queue is about to start.
    ///
    /// Never runs beside a queue's sync. The host reports lost data to one caller only: this sync
    /// could succeed after the queue's has failed, and before the queue has seen the failure.
    pub fn run(&self, file: &mut BlockingFile) -> Outcome {
        let (ticket, leads) = self.request(&QueueWaker::new(file.reactor()));
        let mut leads = mutated("image.group-sync.maintenance-does-not-wait", leads, true);
        while !leads {
            file.wait(|| self.is_served(ticket) || self.is_orphaned());
            if self.is_served(ticket) {
                return self.promise();
            }
            leads = self.take_over();
        }
        let lead = Lead { sync: self };
        let outcome = file.sync();
        std::mem::forget(lead);
        let succeeded = outcome.is_ok();
        let succeeded =
            mutated("image.group-sync.maintenance-forgets-a-failed-sync", succeeded, true);
        self.finish(succeeded, true);
        // After a failed sync, the success of a later one does not cover the data lost by the
        // first.
        outcome.and(self.promise())
    }

    /// Returns the outcome of a flush that has been served.
    pub fn promise(&self) -> Outcome {
        if self.has_failed() { Err(Errno::IO) } else { Ok(()) }
    }

    fn is_orphaned(&self) -> bool {
        self.orphaned.load(Ordering::Acquire)
    }

    /// Returns whether the flush has been served; `has_failed`, asked afterwards, tells the
    /// outcome.
    fn is_served(&self, ticket: Ticket) -> bool {
        self.finished.load(Ordering::Acquire) >= ticket.0
    }

    /// Makes all later flushes fail.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
    }

    /// Returns whether all later flushes fail.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// A sync that a thread carries out. If the thread panics meanwhile, the durability of the data is
/// unknown, so the sync fails: queues that wait for it, or want to lead the next one, must not wait
/// for ever.
struct Lead<'sync> {
    sync: &'sync GroupSync,
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let finishes = mutated("image.group-sync.dies-with-its-leader", true, false);
        if finishes {
            self.sync.finish(false, true);
        }
    }
}

/// The flushes of one queue. The queue starts a sync of the file when [`submit`](Self::submit),
/// [`finish`](Self::finish) or [`take_over`](Self::take_over) returns `true`.
#[derive(Default)]
pub struct Flushes {
    waiting: Vec<(Ticket, Completion)>,
    leading: bool,
    leaving: bool,
}

impl Flushes {
    /// Takes a request that completes once everything completed by now is durable. With `true`, the
    /// caller must start a sync.
    #[must_use]
    pub fn submit(
        &mut self,
        sync: &GroupSync,
        completion: Completion,
        waker: &Arc<QueueWaker>,
    ) -> bool {
        let (ticket, lead) = sync.request(waker);
        self.waiting.push((ticket, completion));
        self.leading |= lead;
        lead
    }

    /// With `true`, the caller must start a durable write, in the place of a sync. With `false`, it
    /// must write, and then [`submit`](Self::submit) the request to wait for a sync.
    #[must_use]
    pub fn begin_write(&mut self, sync: &GroupSync) -> bool {
        let begins = sync.begin_write();
        self.leading |= begins;
        begins
    }

    /// Ends the sync that the caller started. With `true`, it must start another.
    #[must_use]
    pub fn finish(&mut self, sync: &GroupSync, outcome: Outcome) -> bool {
        self.leading = sync.finish(outcome.is_ok(), self.leaving);
        self.leading
    }

    /// With `true`, the queue that led is gone, and the caller must start a sync.
    #[must_use]
    pub fn take_over(&mut self, sync: &GroupSync) -> bool {
        let takes_over = self.is_left_alone(sync) && sync.take_over();
        self.leading |= takes_over;
        takes_over
    }

    /// Returns whether a flush of this queue waits for a sync without a leader. A flush that is
    /// served but not collected does not count: a queue that is leaving would take over again the
    /// lead that it has just left.
    fn is_left_alone(&self, sync: &GroupSync) -> bool {
        let waits = |ticket: &Ticket| {
            let waits = !sync.is_served(*ticket);
            mutated("image.group-sync.takes-over-when-served", waits, true)
        };
        sync.is_orphaned() && self.waiting.iter().any(|(ticket, _)| waits(ticket))
    }

    /// Marks the queue as leaving: the sync that it leads now is its last.
    pub fn leave(&mut self) {
        self.leaving = true;
    }

    /// Moves served flushes to `completed`. `has_failed` is called after a flush is seen to be
    /// served: a sync that failed sets the failure before it ends.
    pub fn collect(
        &mut self,
        sync: &GroupSync,
        has_failed: impl Fn() -> bool,
        completed: &mut Vec<Completion>,
    ) {
        let asks_first = mutated("image.group-sync.asks-before-it-looks", false, true);
        let early = asks_first.then(&has_failed);
        let served = self.waiting.extract_if(.., |(ticket, _)| sync.is_served(*ticket));
        completed.extend(served.map(|(_, completion)| {
            let failed = early.unwrap_or_else(&has_failed);
            let outcome = if failed { Err(Errno::IO) } else { Ok(()) };
            Completion { outcome, ..completion }
        }));
    }

    /// Returns whether a flush has been served, or a sync lacks a leader.
    pub fn can_advance(&self, sync: &GroupSync) -> bool {
        self.is_left_alone(sync) || self.waiting.iter().any(|(ticket, _)| sync.is_served(*ticket))
    }

    /// Returns whether a sync of this queue is in flight.
    pub fn is_leading(&self) -> bool {
        self.leading
    }

    /// Returns whether no flush waits.
    #[cfg(any(test, feature = "testing"))]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns the file request of a sync that a queue starts.
pub fn sync_request(tag: usize) -> FileRequest {
    FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, tag)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use flowstone_block::{Op, Reactor, Request};
    use flowstone_sim::{Call, Fault, SimDisk};

    use super::*;

    fn waker() -> Arc<QueueWaker> {
        QueueWaker::new(&Reactor::new().unwrap())
    }

    fn flush() -> Completion {
        Completion { request: Request::new(Op::Flush, 0), outcome: Ok(()) }
    }

    fn collected(flushes: &mut Flushes, sync: &GroupSync) -> Vec<Outcome> {
        let mut completed = Vec::new();
        flushes.collect(sync, || sync.has_failed(), &mut completed);
        completed.iter().map(|completion| completion.outcome).collect()
    }

    #[test]
    fn those_who_come_while_a_sync_runs_share_the_next_one() {
        let (sync, waker) = (GroupSync::default(), waker());
        let (first, lead) = sync.request(&waker);
        assert!(lead);
        let (second, lead) = sync.request(&waker);
        assert!(!lead);
        assert_eq!(sync.request(&waker), (second, false));
        assert!(sync.finish(true, false), "the leader goes on");
        assert!(sync.is_served(first) && !sync.is_served(second));
        assert!(!sync.finish(true, false));
        assert!(sync.is_served(second));
    }

    #[test]
    fn failure_is_remembered() {
        let (sync, waker) = (GroupSync::default(), waker());
        let (ticket, _) = sync.request(&waker);
        sync.finish(false, false);
        assert!(sync.is_served(ticket) && sync.has_failed());
        sync.request(&waker);
        sync.finish(true, false);
        assert!(sync.has_failed());
    }

    /// A queue checked for a failed sync, then another thread's sync failed, then the queue looked
    /// which of its flushes were served: those of the failed sync completed with success.
    #[test]
    fn a_flush_hears_of_the_failure_of_the_sync_that_served_it() {
        let (sync, waker) = (GroupSync::default(), waker());
        let (mut leader, mut other) = (Flushes::default(), Flushes::default());
        assert!(leader.submit(&sync, flush(), &waker));
        assert!(!other.submit(&sync, flush(), &waker));
        assert!(leader.finish(&sync, Ok(())), "it leads for the other one");
        let mut completed = Vec::new();
        other.collect(&sync, || unreachable!("nothing has been served"), &mut completed);
        let outcomes = std::thread::scope(|scope| {
            scope.spawn(|| assert!(!leader.finish(&sync, Err(Errno::IO))));
            while !other.can_advance(&sync) {
                std::hint::spin_loop();
            }
            collected(&mut other, &sync)
        });
        assert_eq!(outcomes, [Err(Errno::IO)]);
    }

    /// Two programs that flushed over and over kept a leading queue from leaving for as long as
    /// they went on.
    #[test]
    fn a_queue_that_goes_leaves_the_lead_to_one_that_waits() {
        let (sync, waker) = (GroupSync::default(), waker());
        let [mut leader, mut second, mut third] = [(); 3].map(|()| Flushes::default());
        assert!(leader.submit(&sync, flush(), &waker));
        assert!(!second.submit(&sync, flush(), &waker) && !third.submit(&sync, flush(), &waker));
        leader.leave();
        assert!(!leader.finish(&sync, Ok(())) && !leader.is_leading());
        assert_eq!(collected(&mut leader, &sync), [Ok(())]);
        assert!(!second.take_over(&GroupSync::default()) && !leader.take_over(&sync));
        assert!(second.can_advance(&sync) && third.can_advance(&sync));
        assert!(second.take_over(&sync) && second.is_leading());
        assert!(!third.take_over(&sync) && !third.can_advance(&sync));
        assert!(!second.finish(&sync, Ok(())));
        assert_eq!([collected(&mut second, &sync), collected(&mut third, &sync)], [[Ok(())]; 2]);
    }

    /// A queue's sync failed, and the queue had not seen that yet: the sync of the maintenance
    /// worker beside it succeeded, and a checkpoint referred to lost data.
    #[test]
    fn a_sync_of_the_maintenance_worker_hears_of_a_failure_that_its_queue_has_not_seen_yet() {
        let disk = SimDisk::new(1 << 20);
        let (sync, waker) = (GroupSync::default(), waker());
        let mut leader = Flushes::default();
        assert!(leader.submit(&sync, flush(), &waker));
        let (asks, asked) = sync_channel(1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut file = BlockingFile::new(&disk).unwrap();
                asks.send(()).unwrap();
                (sync.run(&mut file), sync.run(&mut file))
            });
            asked.recv().unwrap();
            while sync.state().late.is_empty() {
                assert!(!worker.is_finished(), "it has not waited for the queue");
                std::hint::spin_loop();
            }
            // The worker's sync is the next one, which the leader carries out.
            assert!(leader.finish(&sync, Err(Errno::IO)));
            assert!(!leader.finish(&sync, Ok(())));
            assert_eq!(worker.join().unwrap(), (Err(Errno::IO), Err(Errno::IO)));
        });
    }

    #[test]
    fn flushes_that_come_while_the_maintenance_worker_syncs_find_a_leader() {
        let disk = SimDisk::new(1 << 20);
        let (sync, waker) = (GroupSync::default(), waker());
        let [mut first, mut second] = [(); 2].map(|()| Flushes::default());
        let mut file = BlockingFile::new(&disk).unwrap();
        // As if the worker had begun: it requests a sync like a queue, and leaves as soon as that
        // is done.
        let (_, leads) = sync.request(&waker);
        assert!(leads && !first.submit(&sync, flush(), &waker));
        assert!(!sync.finish(true, true));
        assert!(first.can_advance(&sync) && first.take_over(&sync));
        assert!(!second.submit(&sync, flush(), &waker));
        assert!(first.finish(&sync, Ok(())) && !first.finish(&sync, Ok(())));
        assert_eq!([collected(&mut first, &sync), collected(&mut second, &sync)], [[Ok(())]; 2]);
        assert_eq!(sync.run(&mut file), Ok(()));
        disk.inject(Fault::fail(Errno::IO).on(Call::Datasync));
        assert_eq!(sync.run(&mut file), Err(Errno::IO));
        assert_eq!(sync.run(&mut file), Err(Errno::IO), "the host says it once");
    }

    #[test]
    fn a_new_flush_leads_for_those_that_were_left_alone() {
        let (sync, waker) = (GroupSync::default(), waker());
        let [mut leader, mut waiting, mut fresh] = [(); 3].map(|()| Flushes::default());
        assert!(leader.submit(&sync, flush(), &waker));
        assert!(!waiting.submit(&sync, flush(), &waker));
        leader.leave();
        assert!(!leader.finish(&sync, Ok(())));
        assert!(fresh.submit(&sync, flush(), &waker));
        assert!(!waiting.can_advance(&sync) && !waiting.take_over(&sync));
        assert!(!fresh.finish(&sync, Ok(())));
        assert_eq!([collected(&mut waiting, &sync), collected(&mut fresh, &sync)], [[Ok(())]; 2]);
    }

    /// Data that waits for a sync does not become durable with another request's durable write.
    #[test]
    fn a_durable_write_begins_when_no_sync_runs_and_none_is_waited_for() {
        let (sync, waker) = (GroupSync::default(), waker());
        let [mut writer, mut leader, mut waiting] = [(); 3].map(|()| Flushes::default());
        assert!(writer.begin_write(&sync) && writer.is_leading());
        assert!(!leader.begin_write(&sync), "one runs");
        assert!(!leader.submit(&sync, flush(), &waker), "nor does a sync beside it");
        assert!(writer.finish(&sync, Ok(())), "it goes on with a sync");
        assert_eq!(collected(&mut leader, &sync), []);
        assert!(!writer.finish(&sync, Ok(())));
        assert_eq!(collected(&mut leader, &sync), [Ok(())]);
        assert!(leader.submit(&sync, flush(), &waker));
        assert!(!waiting.submit(&sync, flush(), &waker));
        leader.leave();
        assert!(!leader.finish(&sync, Ok(())));
        assert!(!writer.begin_write(&sync), "orphans wait");
        assert!(waiting.take_over(&sync) && !waiting.finish(&sync, Ok(())));
        assert!(writer.begin_write(&sync) && !writer.finish(&sync, Err(Errno::IO)));
        assert_eq!(collected(&mut waiting, &sync), [Err(Errno::IO)]);
    }
}
