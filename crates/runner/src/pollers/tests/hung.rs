//! A disk whose host does not answer, beside one whose host does, on one thread.

use std::sync::atomic::AtomicU32;
use std::sync::{Condvar, Mutex};

use flowstone_block::{
    Channel, Completion, Geometry, Layer, NextLook, QueueContext, Request, SectorCount,
};

use super::*;

/// A disk whose channels have their own I/O in flight until it is released: a sync for others, a
/// read-ahead. Dropping a channel waits for it.
#[derive(Clone, Default)]
struct Hung {
    goes_on: Arc<(Mutex<bool>, Condvar)>,
    /// Whether opening a channel waits for the release.
    opens: bool,
    /// Whether requests are answered; otherwise they panic.
    answers: bool,
    /// Number of `retire` calls.
    retirements: Arc<AtomicU32>,
}

struct HungChannel(Hung, Vec<Completion>);

impl Hung {
    fn go_on(&self) {
        *self.goes_on.0.lock().unwrap() = true;
        self.goes_on.1.notify_all();
    }

    fn wait(&self) {
        let goes_on = self.goes_on.0.lock().unwrap();
        drop(self.goes_on.1.wait_while(goes_on, |goes_on| !*goes_on).unwrap());
    }
}

/// Releases the disk on drop, so that a failing test ends.
struct GoesOn<'disk>(&'disk Hung);

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

impl Layer for Hung {
    fn geometry(&self) -> Geometry {
        Geometry::with_capacity(SectorCount::new(1 << 12))
    }

    fn channel(&self, _: &QueueContext) -> io::Result<Box<dyn Channel>> {
        if self.opens {
            self.wait();
        }
        Ok(Box::new(HungChannel(self.clone(), Vec::new())))
    }
}

impl Channel for HungChannel {
    fn submit(&mut self, request: Box<Request>) {
        assert!(self.0.answers, "the mistake");
        self.1.push(Completion { request, outcome: Ok(()) });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        done.append(&mut self.1);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.1.is_empty())
    }

    fn retire(&mut self) -> bool {
        self.0.retirements.fetch_add(1, Ordering::Relaxed);
        *self.0.goes_on.0.lock().unwrap()
    }
}

impl Drop for HungChannel {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// Runs a queue of a disk on shared pollers, in this form.
fn run(places: &Places, disk: &Hung, form: Form) -> (FakeGuest, QueueTasks) {
    let (guest, queue) = FakeGuest::new(Asks::Flush);
    let spec = QueueSpec { layer: Arc::new(disk.clone()), ..spec(&Held::default()) };
    let tasks = places.run(form, Box::new(queue), &spec);
    (guest, tasks.map_err(|not_run| not_run.error).unwrap())
}

fn places(pollers: usize) -> Places {
    let choice = PollerChoice::Count(pollers);
    Places::new(&PollersConfig { choice, ..PollersConfig::default() }).unwrap()
}

/// Regression: the thread blocked in the drop of the queue's channel, and with it all disks that it
/// serves.
fn a_queue_goes(answers: bool) {
    for form in [Form::Fused, Form::Split] {
        let places = places(1);
        let hung = Hung { answers, ..Hung::default() };
        let healthy = Hung { answers: true, ..Hung::default() };
        healthy.go_on();
        let (mut guest, tasks) = run(&places, &hung, form);
        let (mut neighbour, its) = run(&places, &healthy, form);
        guest.offer(0);
        thread::scope(|scope| {
            let goes_on = GoesOn(&hung);
            let retires = || hung.retirements.load(Ordering::Relaxed) > 0;
            wait_until(|| if answers { guest.used() == 1 } else { retires() });
            let stop = scope.spawn(|| tasks.stop().is_some());
            wait_until(retires);
            for chain in 0..3 {
                neighbour.offer(chain);
                wait_until(|| neighbour.used() == chain + 1);
            }
            assert!(its.stop().is_some(), "the neighbour stops");
            assert!(!stop.is_finished(), "what is on its way is waited for");
            drop(goes_on);
            assert_eq!(stop.join().unwrap(), answers);
        });
    }
}

#[test]
fn a_queue_that_stops_while_it_leads_a_sync_holds_up_no_other_one_of_its_thread() {
    a_queue_goes(true);
}

#[test]
fn a_queue_that_has_panicked_is_dropped_when_its_disk_has_nothing_of_it_any_more() {
    a_queue_goes(false);
}

/// Regression: the start waited with the list of all queues locked, which blocked `stats` and the
/// starts of all disks.
#[test]
fn a_queue_whose_disk_hangs_at_its_start_holds_up_neither_reports_nor_other_starts() {
    let places = places(2);
    let hung = Hung { opens: true, answers: true, ..Hung::default() };
    let healthy = Hung { answers: true, ..Hung::default() };
    healthy.go_on();
    thread::scope(|scope| {
        let goes_on = GoesOn(&hung);
        let start = scope.spawn(|| run(&places, &hung, Form::Fused));
        let others = scope.spawn(|| {
            // It has a thread as soon as it is handed over.
            while places.report().is_empty() {
                thread::yield_now();
            }
            run(&places, &healthy, Form::Fused).1.stop().is_some()
        });
        wait_until(|| others.is_finished());
        assert!(others.join().unwrap() && !start.is_finished());
        drop(goes_on);
        assert!(start.join().unwrap().1.stop().is_some());
    });
}
