//! Tests of threads that cannot start, of threads and queues that end while requests wait for them,
//! and of the close.

use std::collections::BTreeSet;
use std::path::Path;

use flowstone_block::{
    AlignedBuf, Channel, Errno, Extent, IoVec, Op, Outcome, QueueContext, QueueDepth, Request,
    Sector, SectorCount,
};
use flowstone_fileio::Access;
use flowstone_image::{DiscardMode, Wait};
use flowstone_sim::{Call, Fault, Schedule};
use flowstone_sim::{Deadly, Wrapped, wait_until};

use super::fixture::{BLOCK_SECTORS, Fixture, Setup};
use crate::channel::LogChannel;
use crate::disk::LogImage;

/// Advances everything that can advance.
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

/// Retires the maintenance worker: all requests in flight complete.
fn retire(fixture: &Fixture) {
    fixture.log.retire();
    turns(fixture);
    assert_eq!(fixture.guests().in_flight(), 0, "a request hangs");
}

/// Regression: without a thread, or a descriptor for it, the image was refused after its mark, and
/// stayed as after a kill.
#[test]
fn an_image_without_a_maintenance_worker_is_not_marked() {
    let (disk, _) = Setup::default().fixture(1).close();
    let before = disk.to_bytes();
    let file = Wrapped::refusing(&disk, "maintenance");
    let (mode, access) = (DiscardMode::Deallocate, Access::Write);
    let refusal = LogImage::open(Path::new("image"), Box::new(file), mode, access, None, None);
    let refusal = refusal.err().unwrap().to_string();
    assert!(refusal.contains("Too many open files"), "{refusal}");
    assert!(disk.to_bytes() == before, "it is marked");
}

/// Regression: a close that failed was a line of the log, and the exit status 0. On a full host
/// nothing is lost, and the next start recovers: that is no failure.
#[test]
fn a_close_that_fails_says_so() {
    for (call, errno) in [
        (Call::Write, Errno::IO),
        (Call::Datasync, Errno::IO),
        (Call::Write, Errno::NOSPC),
        (Call::Allocate, Errno::NOSPC),
    ] {
        let mut fixture = Setup::default().fixture(1);
        fixture.write_blocks(0..9).unwrap();
        fixture.disk.inject(Fault::fail(errno).on(call).always());
        let closed = fixture.maintenance.close();
        let is_full = errno == Errno::NOSPC;
        assert_eq!(closed, if is_full { Ok(()) } else { Err(errno) }, "{call:?}");
    }
}

/// The record's own request failed. The request that waited for the record never completed: its
/// queue could not be drained, and the disk not be stopped.
#[test]
fn a_write_that_waits_for_another_record_comes_back_when_the_maintenance_worker_is_gone() {
    let mut fixture = Setup::default().fixture(1);
    fixture.write_blocks(0..8).unwrap();
    // One half of block 5 is in a record in flight, the other half waits for that.
    fixture.guests().write(0, 40..44);
    fixture.guests().kick(0);
    fixture.guests().reap(0);
    fixture.guests().write(1, 44..48);
    fixture.guests().kick(1);
    fixture.guests().reap(1);
    fixture.guests().kick(1);
    assert_eq!(fixture.guests().waits(1), BTreeSet::from([Wait::Conflict]));
    retire(&fixture);
}

#[test]
fn a_write_behind_a_failed_record_comes_back_when_the_maintenance_worker_is_gone() {
    let mut fixture = Setup::default().fixture(1);
    fixture.write_blocks(0..8).unwrap();
    fixture.disk.inject(Fault::fail(Errno::IO).on(Call::Write));
    for queue in 0..2 {
        let first = queue as u64 * BLOCK_SECTORS;
        fixture.guests().write(queue, first..first + BLOCK_SECTORS);
        turns(&fixture);
    }
    assert_eq!(fixture.guests().waits(1), BTreeSet::from([Wait::Restart]));
    retire(&fixture);
}

/// One queue of an image with a maintenance worker of its own, and a block for each of its
/// requests.
struct Queue {
    channel: LogChannel,
    // Dropped after the channel.
    memory: AlignedBuf,
}

impl Queue {
    fn new(image: &LogImage) -> Self {
        let context = QueueContext::alone(QueueDepth(8)).unwrap();
        let channel = image.queue(&context).unwrap();
        Self { channel, memory: AlignedBuf::zeroed(4096) }
    }

    fn begin(&mut self, block: u64) {
        let count = SectorCount::new(BLOCK_SECTORS);
        let extent = Extent::new(Sector::new(block * BLOCK_SECTORS), count).unwrap();
        let mut request = Request::new(Op::Write(extent), 0);
        // SAFETY: the memory goes after the channel.
        request.memory.push(unsafe { IoVec::of(&mut self.memory) });
        self.channel.submit(request);
        self.channel.kick();
    }

    fn look(&mut self) -> Option<Outcome> {
        let mut done = Vec::new();
        self.channel.next_look();
        self.channel.reap(&mut done);
        done.pop().map(|completion| completion.outcome)
    }

    fn wait(&mut self) -> Outcome {
        let mut outcome = None;
        wait_until("the write is back", || {
            outcome = self.look();
            outcome.is_some()
        });
        outcome.unwrap()
    }
}

fn image(file: &Deadly) -> LogImage {
    let boxed = file.file();
    LogImage::open(Path::new("image"), boxed, DiscardMode::Deallocate, Access::Write, None, None)
        .unwrap()
}

#[test]
fn a_write_without_room_comes_back_when_the_maintenance_worker_panics() {
    // The first segment is prepared when it is requested.
    let fixture = Setup::default().fixture(1);
    fixture.guests().write(0, 0..BLOCK_SECTORS);
    fixture.guests().kick(0);
    assert_eq!(fixture.guests().waits(0), BTreeSet::from([Wait::Room]));
    retire(&fixture);
    // The same, with a thread that panics.
    let file = Deadly::new(&Setup::default().image());
    let image = image(&file);
    let mut queue = Queue::new(&image);
    file.kill("maintenance");
    queue.begin(0);
    assert_eq!(queue.wait(), Err(Errno::IO));
    file.wait();
    queue.begin(1);
    assert_eq!(queue.wait(), Err(Errno::IO));
}

/// A sync that the maintenance worker led when it panicked never ended: no flush could start
/// another.
#[test]
fn a_sync_in_which_its_leader_dies_has_failed() {
    let file = Deadly::new(&Setup::default().image());
    let image = image(&file);
    let mut queue = Queue::new(&image);
    queue.begin(0);
    queue.wait().unwrap();
    file.kill_at_sync("maintenance");
    let command = crate::command::Command::Compact;
    assert_eq!(image.ask(command), Err(Errno::IO));
    file.wait();
    queue.channel.submit(Request::new(Op::Flush, 0));
    queue.channel.kick();
    assert_eq!(queue.wait(), Err(Errno::IO));
}

/// The drop waits for the record, which commits the records that wait behind it.
#[test]
fn a_write_goes_on_when_the_queue_of_the_record_before_it_is_dropped() {
    let disk = Setup::default().image();
    disk.set_schedule(Schedule::Shuffled { seed: 1 });
    let image = image(&Deadly::new(&disk));
    let [mut first, mut second] = [(); 2].map(|()| Queue::new(&image));
    first.begin(0);
    first.wait().unwrap();
    // Completions of a queue are seen when it looks, not before.
    first.begin(1);
    second.begin(2);
    wait_until("its record is written", || {
        assert_eq!(second.look(), None, "the record before it is not in the file");
        second.channel.waits() == BTreeSet::from([Wait::Commit])
    });
    assert_eq!(first.channel.waits(), BTreeSet::from([Wait::Host]));
    drop(first);
    assert_eq!(second.wait(), Ok(()));
}
