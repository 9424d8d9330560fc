//! Guests on threads of their own whose writes are held by cleaning, since it copies slowly on a
//! full disk: they go on, leave, are stopped or killed, and no completed write is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use flowstone_block::{
    Channel, Class, IoVec, NextLook, Op, QueueContext, QueueDepth, Reactor, Request,
};
use flowstone_fileio::{FileChannel, FileCompletion, FileRequest};
use flowstone_sim::{Fate, Moment, SimDisk, Wrapped};

use super::crash::Tell;
use super::fixture::{BLOCK_SECTORS, Fixture, Setup, begin, contents_read_only, extent};
use super::history_model::{Stamp, stamp};
use crate::channel::LogChannel;
use crate::log::Log;
use crate::maintenance::{CheckpointKind, Maintenance, Progress};
use crate::session::load_for;
use crate::volume::Volume;
use flowstone_log_format::LIFETIME_CLEANED;

/// Far longer than the whole test takes.
const HANGS: Duration = flowstone_testkit::HANG;
/// Additional latency of each request of the maintenance worker.
const SLOW: Duration = Duration::from_micros(400);
const WORKER: &str = "maintenance";
const GUESTS: u64 = 3;
const LEAVER: u64 = GUESTS;

struct SlowChannel {
    channel: Box<dyn FileChannel>,
    is_slow: bool,
}

/// Makes a disk on which the maintenance worker is slow, and guests are not.
fn slow(disk: &SimDisk) -> Wrapped {
    let is_worker = || thread::current().name() == Some(WORKER);
    Wrapped::new(disk, move |channel| SlowChannel { channel, is_slow: is_worker() })
}

impl FileChannel for SlowChannel {
    fn submit(&mut self, request: FileRequest) {
        if self.is_slow {
            thread::sleep(SLOW);
        }
        self.channel.submit(request);
    }

    fn kick(&mut self) {
        self.channel.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.channel.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        self.channel.next_look()
    }
}

/// A block that a guest has written, or is writing.
struct Change {
    lba: u64,
    stamp: Stamp,
    begun: Moment,
    ended: Option<Moment>,
}

/// A guest with one request in flight. Each owns every fourth block.
struct Guest {
    me: u64,
    log: Arc<Log>,
    volume: Arc<Volume>,
    disk: SimDisk,
    random: Rng,
    changes: Vec<Change>,
    buffer: Vec<u8>,
}

impl Guest {
    fn new(me: u64, log: &Arc<Log>, volume: &Arc<Volume>, disk: &SimDisk) -> Self {
        let (log, volume, disk) = (Arc::clone(log), Arc::clone(volume), disk.clone());
        let (random, buffer) = (Rng::with_seed(me), vec![0; 4096]);
        Self { me, log, volume, disk, random, changes: Vec::new(), buffer }
    }

    fn queue(&self) -> (LogChannel, Reactor) {
        let context = QueueContext::alone(QueueDepth(1)).unwrap();
        let (log, volume) = (Arc::clone(&self.log), Arc::clone(&self.volume));
        let channel = LogChannel::new(log, volume, &context, false).unwrap();
        (channel, context.reactor)
    }

    /// Starts a write to any block of this guest.
    fn submit(&mut self, queue: &mut LogChannel) {
        let lba = self.random.u64(..self.volume.blocks() / (GUESTS + 1)) * (GUESTS + 1) + self.me;
        let sectors = lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS;
        let number = 1 + self.me * 1_000_000 + self.changes.len() as u64;
        stamp(&mut self.buffer, sectors.start, number);
        self.changes.push(Change { lba, stamp: number, begun: self.disk.now(), ended: None });
        let mut request = Request::new(Op::Write(extent(&sectors)), 0);
        request.class = Class::Data;
        // SAFETY: the buffer is not touched before the request comes back or its queue is dropped.
        request.memory.push(unsafe { IoVec::of(&mut self.buffer) });
        queue.submit(request);
        queue.kick();
    }

    /// Returns whether the request has completed.
    fn reap(&mut self, queue: &mut LogChannel) -> bool {
        let mut done = Vec::new();
        queue.reap(&mut done);
        for completion in &done {
            assert_eq!(completion.outcome, Ok(()), "guest {}", self.me);
            let ended = Some(self.disk.now());
            self.changes.last_mut().expect("it has begun one").ended = ended;
        }
        !done.is_empty()
    }

    /// Writes one block after the other, until told to stop.
    fn stay(mut self, stop: &AtomicBool) -> Self {
        let (mut queue, reactor) = self.queue();
        while !stop.load(Ordering::Relaxed) {
            self.submit(&mut queue);
            while !self.reap(&mut queue) {
                reactor.sleep(|| queue.next_look());
            }
        }
        drop(queue);
        self
    }

    /// Writes a block with each queue, and drops the queue without waiting if the write is held.
    fn come_and_go(mut self, stop: &AtomicBool, left: &AtomicU32) -> Self {
        while !stop.load(Ordering::Relaxed) {
            let (mut queue, _) = self.queue();
            self.submit(&mut queue);
            if !self.reap(&mut queue) && self.log.append_state().rate().is_holding() {
                left.fetch_add(1, Ordering::Relaxed);
            }
        }
        self
    }
}

/// Checks that every written block holds its last write that had ended by then, or a later one.
fn judge(seen: &[Stamp], guests: &[Guest], moment: Moment) {
    let mut allowed = vec![vec![0]; seen.len() / BLOCK_SECTORS as usize];
    let changes = guests.iter().flat_map(|guest| &guest.changes);
    for change in changes.filter(|change| change.begun <= moment) {
        let of_block = &mut allowed[change.lba as usize];
        if change.ended.is_some_and(|ended| ended < moment) {
            of_block.clear();
        }
        of_block.push(change.stamp);
    }
    for (lba, (seen, allowed)) in seen.chunks(BLOCK_SECTORS as usize).zip(&allowed).enumerate() {
        assert!(seen.iter().all(|it| allowed.contains(it)), "block {lba}: {seen:?} of {allowed:?}");
    }
}

fn spawn<T: Send + 'static>(
    done: &Sender<()>,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let done = done.clone();
    let work = move || {
        let result = work();
        let _ = done.send(());
        result
    };
    thread::Builder::new().name(name.into()).spawn(work).unwrap()
}

/// Holds a guest while a victim is cleaned that frees less than guests owe, or more. Returns how
/// often waiting guests were released before cleaning ended, and whether the guest's write has
/// completed after it.
fn held_beside_cleaning(owed: u32) -> (u64, bool) {
    let mut fixture = Setup { blocks: 256, queues: 1, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..200).unwrap();
    for lba in (0..200).filter(|lba| lba % 3 == 0) {
        fixture.write_blocks(lba..lba + 1).unwrap();
    }
    let (victim, segment) = fixture.maintenance.cleaner.choose_victim().unwrap();
    {
        let mut state = fixture.log.append_state();
        state.rate_mut().set_room(0, 1 << 20);
        state.rate_mut().wrote(owed, 0);
        state.rate_mut().begin();
    }
    fixture.guests().write(0, 0..BLOCK_SECTORS);
    fixture.guests().kick(0);
    assert!(fixture.log.append_state().rate().is_holding());
    let before = fixture.log.room_made();
    fixture
        .maintenance
        .cleaner
        .clean_into(&mut fixture.maintenance.writer, LIFETIME_CLEANED, (victim, segment))
        .unwrap();
    let told = fixture.log.room_made() - before;
    fixture.log.end_copying();
    // The queue does not retry on its own.
    let _ = (0..4).filter(|_| fixture.guests().reap(0)).count();
    let is_done = fixture.guests().in_flight() == 0;
    (told, is_done)
}

#[test]
fn guests_that_are_held_go_on_when_enough_is_won_or_cleaning_ends() {
    assert_eq!(held_beside_cleaning(1000), (0, true), "more is owed than is won");
    let (told, is_done) = held_beside_cleaning(1);
    assert!(told > 0 && is_done, "told {told} times, done {is_done}");
}

/// Returns whether the write of a guest that cleaning holds has completed after this work.
fn goes_on_after(work: impl FnOnce(&mut Maintenance)) -> bool {
    let mut fixture = Setup { blocks: 256, queues: 1, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..200).unwrap();
    fixture.quiet();
    {
        let mut state = fixture.log.append_state();
        state.rate_mut().set_room(0, 1 << 20);
        state.rate_mut().wrote(1000, 0);
        state.rate_mut().begin();
    }
    fixture.guests().write(0, 0..BLOCK_SECTORS);
    fixture.guests().kick(0);
    assert!(fixture.log.append_state().rate().is_holding());
    work(&mut fixture.maintenance);
    let _ = (0..4).filter(|_| fixture.guests().reap(0)).count();
    fixture.guests().in_flight() == 0
}

#[test]
fn guests_that_are_held_go_on_when_nothing_is_due_and_during_checkpoints() {
    let idle = |maintenance: &mut Maintenance| while maintenance.step() == Progress::Made {};
    assert!(goes_on_after(idle), "the maintenance worker sleeps, and the guest is held");
    let checkpoint = |maintenance: &mut Maintenance| {
        maintenance.writer.checkpoint(CheckpointKind::Running).unwrap();
    };
    assert!(goes_on_after(checkpoint), "the guest is held beyond a checkpoint");
}

/// Each record has a header: guests that wait for cleaning do not cause more of them.
#[test]
fn a_write_that_is_held_takes_along_what_comes_meanwhile() {
    let mut fixture = Setup { blocks: 256, queues: 1, ..Setup::default() }.fixture(1);
    fixture.write_blocks(0..200).unwrap();
    {
        let mut state = fixture.log.append_state();
        state.rate_mut().set_room(0, 1 << 20);
        state.rate_mut().wrote(1000, 0);
        state.rate_mut().begin();
    }
    let headers = |fixture: &Fixture| fixture.log.append_state().accounting().costs().header_blocks;
    let before = headers(&fixture);
    for lba in 0..5 {
        fixture.guests().write(0, lba * BLOCK_SECTORS..(lba + 1) * BLOCK_SECTORS);
        fixture.guests().kick(0);
        assert!(fixture.log.append_state().rate().is_holding());
    }
    assert_eq!(headers(&fixture), before);
    fixture.log.end_copying();
    let _ = (0..4).filter(|_| fixture.guests().reap(0)).count();
    assert_eq!(fixture.guests().in_flight(), 0);
    assert_eq!(headers(&fixture), before + 1);
    fixture.check();
}

#[test]
fn guests_that_are_held_go_on_leave_are_stopped_and_killed_and_lose_nothing() {
    let setup = Setup { blocks: 1024, reserve: Some(5), ..Setup::default() };
    let disk = setup.image();
    let (log, volume, unbegun) =
        load_for("image".into(), Box::new(slow(&disk)), false, None, None).unwrap();
    let (done, all_done) = channel();
    let worker = spawn(&done, WORKER, || unbegun.unwrap().begin().unwrap().run().unwrap());
    let (stop, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut guests: Vec<_> = (0..GUESTS)
        .map(|me| {
            let (guest, stop) = (Guest::new(me, &log, &volume, &disk), Arc::clone(&stop));
            spawn(&done, "guest", move || guest.stay(&stop))
        })
        .collect();
    guests.push(spawn(&done, "leaver", {
        let (guest, stop, left) =
            (Guest::new(LEAVER, &log, &volume, &disk), Arc::clone(&stop), left.clone());
        move || guest.come_and_go(&stop, &left)
    }));
    // Moments at which a guest is held.
    let (start, mut held) = (Instant::now(), Vec::new());
    while held.len() < 40 || left.load(Ordering::Relaxed) < 20 {
        assert!(start.elapsed() < HANGS, "held {} times, left {left:?}", held.len());
        if log.append_state().rate().is_holding() {
            held.push(disk.now());
        }
        thread::sleep(SLOW);
    }
    // The end comes while they are held, too.
    while !log.append_state().rate().is_holding() {
        assert!(start.elapsed() < HANGS, "no guest is held any more");
        thread::yield_now();
    }
    stop.store(true, Ordering::Relaxed);
    for _ in &guests {
        all_done.recv_timeout(HANGS).expect("no guest hangs or fails");
    }
    log.inbox.stop();
    all_done.recv_timeout(HANGS).expect("the maintenance worker ends");
    worker.join().unwrap();
    let guests: Vec<Guest> = guests.into_iter().map(|guest| guest.join().unwrap()).collect();
    judge(&contents_read_only(&disk).unwrap(), &guests, disk.now());
    for (index, moment) in held.into_iter().step_by(4).enumerate() {
        let _tell = Tell(format!("killed at {moment:?}"));
        let killed = disk.kill_at(moment, &mut Fate::seeded(index as u64));
        let seen = contents_read_only(&killed).unwrap();
        judge(&seen, &guests, moment);
        begin(Box::new(killed.clone()), None).unwrap();
        assert!(contents_read_only(&killed).unwrap() == seen, "recovery came to another end");
    }
}
