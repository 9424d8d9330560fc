//! Queues that panic in other calls than turns, and pollers that have died.

use flowstone_testkit::{Client, ClientOptions};

use super::fairness::{Fixture, later};
use super::*;
use crate::task::{Part, Task, Work};

/// A queue that panics in the call of this name.
struct Mistaken(&'static str);

impl Mistaken {
    fn call(&self, name: &str) {
        assert_ne!(self.0, name, "the mistake");
    }
}

impl Task for Mistaken {
    fn issue(&mut self, _bytes_max: u64) -> Option<Work> {
        None
    }

    fn is_leaving(&self) -> bool {
        false
    }

    fn may_rest(&self) -> bool {
        self.call("may_rest");
        true
    }

    fn is_over(&mut self) -> bool {
        false
    }

    fn begin_idle(&mut self, _now: Instant) -> Duration {
        self.call("begin_idle");
        Duration::ZERO
    }

    fn count_looking(&self, _time: Duration) {
        self.call("count_looking");
    }

    fn park(&mut self) -> bool {
        false
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::Now
    }

    fn unpark(&mut self) -> bool {
        self.call("unpark");
        false
    }

    fn count_sleep(&self, _time: Duration) {
        self.call("count_sleep");
    }

    fn finish(self: Box<Self>) -> Box<dyn Part> {
        unreachable!("it does not end")
    }
}

/// Regression: each of these ended the thread, and with it the queues of all disks on it.
#[test]
fn a_queue_that_panics_in_any_call_ends_alone() {
    for call in ["may_rest", "begin_idle", "count_looking", "unpark", "count_sleep"] {
        let mut fixture = Fixture::new(&[], Duration::ZERO);
        fixture.add(0, Box::new(Mistaken(call)));
        fixture.add(1, Box::new(Mistaken("none")));
        let poller = &mut fixture.poller;
        if call == "may_rest" {
            poller.tasks[0].rests = Some(later());
        }
        let now = Instant::now();
        poller.look_budget(now);
        poller.count_looking(Duration::from_millis(1), now);
        poller.sleep();
        let dead: Vec<bool> = poller.tasks.iter().map(|task| task.dead).collect();
        assert_eq!(dead, [true, false], "{call}");
    }
}

/// Regression: the queue was lost.
#[test]
fn a_queue_stays_where_it_is_when_the_poller_that_it_moves_to_has_died() {
    let dir = on_disk();
    let config = disk(dir.path(), "it.raw", EngineChoice::Auto, DirectChoice::Auto);
    let shared = Shared::new(2);
    shared.pollers[1].die_for_test();
    let disk = Disk::new(0, &config, &shared);
    let mut options = ClientOptions::new(disk.socket());
    options.queues = usize::from(QUEUES);
    let mut client = Client::connect(options).unwrap();
    client.write(0, &[1; 4096]).unwrap();
    assert!(shared.move_one((0, 0)));
    wait_until("it is back", || {
        let running = shared.running.lock().unwrap();
        running[&(0, 0)].orders().place() == (0, true)
    });
    client.write(8, &[1; 4096]).unwrap();
}
