//! Threads that die while requests wait for them.

use super::fixture::{Fixture, Setup};

/// All that can move moves.
fn turns(fixture: &Fixture) {
    for _ in 0..50 {
        for queue in 0..2 {
            let mut guests = fixture.guests();
            guests.kick(queue);
            guests.nap(queue);
            guests.reap(queue);
        }
    }
}

/// One half of block 5 is in a record on its way, the other half waits for that: each by another queue.
fn a_conflict() -> Fixture {
    let mut fixture = Setup::default().fixture(1);
    fixture.write_blocks(0..8).unwrap();
    fixture.guests().write(0, 40..44);
    fixture.guests().kick(0);
    fixture.guests().reap(0);
    fixture.guests().write(1, 44..48);
    fixture.guests().kick(1);
    fixture.guests().reap(1);
    fixture.guests().kick(1);
    assert_eq!(fixture.guests().in_flight(), 2);
    fixture
}

/// The record's own request failed. The one that waited for the record never came back: its queue could not be
/// drained, and the disk not be stopped.
#[test]
fn a_write_that_waits_for_another_record_comes_back_when_the_maintenance_worker_is_gone() {
    let fixture = a_conflict();
    fixture.core.retire();
    turns(&fixture);
    assert_eq!(fixture.guests().in_flight(), 0, "a request hangs");
}
