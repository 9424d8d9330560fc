//! Queues over plain memory, and the requests that they leave to a next life.

use super::super::chain::BadChain;
use super::super::fuzzing::{log_for, parts_over};
use super::super::inflight::{InflightRegion, Undone};
use super::super::protocol::{
    RANGES_MAX, REQUEST_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENTS_MAX, Status, request_type,
};
use super::super::shared::DeviceShared;
use super::avail::DEATHS_MAX;
use super::start::PIECES_KEPT;
use super::*;
use flowstone_block::{Errno, Op, SectorCount};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

const SIZE: u16 = 4;
const HEADER_AT: u64 = 0x1000;
const STATUS_AT: u64 = 0x1800;

/// Makes guest memory with one chain: a discard of these ranges.
fn discard_of(ranges: &[(u64, u32)]) -> File {
    let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    memory.set_len(0x2000).unwrap();
    let put = |at: u64, bytes: &[u8]| memory.write_all_at(bytes, at).unwrap();
    let descriptor = |index: u64, address: u64, bytes: u32, flags: u16, next: u16| {
        put(16 * index, &address.to_le_bytes());
        put(16 * index + 8, &bytes.to_le_bytes());
        put(16 * index + 12, &flags.to_le_bytes());
        put(16 * index + 14, &next.to_le_bytes());
    };
    descriptor(0, HEADER_AT, 16 + 16 * ranges.len() as u32, 1, 1);
    descriptor(1, STATUS_AT, 1, 2, 0);
    put(HEADER_AT, &11u32.to_le_bytes());
    for (index, (sector, count)) in ranges.iter().enumerate() {
        let at = HEADER_AT + 16 + 16 * index as u64;
        put(at, &sector.to_le_bytes());
        put(at + 8, &count.to_le_bytes());
    }
    put(STATUS_AT, &[0xff]);
    // The avail ring has one entry, chain 0.
    put(16 * u64::from(SIZE) + 2, &1u16.to_le_bytes());
    memory
}

#[test]
fn ranges_are_given_out_together_and_answered_once_with_any_failure() {
    let memory = discard_of(&[(0, 8), (8, 8), (64, 8), (32, 8)]);
    let kick = File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let parts = parts_over(memory.try_clone().unwrap(), 0x2000, SIZE, false, kick).unwrap();
    let mut queue = VirtQueue::new(parts, Arc::default(), None);
    let status = || {
        let mut status = [0];
        memory.read_exact_at(&mut status, STATUS_AT).unwrap();
        status[0]
    };
    let mut parts = Vec::new();
    let taken = queue.take(usize::MAX, || true, |request| parts.push(request));
    assert_eq!((taken.chains, taken.answered), (1, 0));
    let mut starts: Vec<u64> =
        parts.iter().map(|it| it.op.extent().unwrap().start().get()).collect();
    starts.sort_unstable();
    assert_eq!(starts, [0, 32, 64], "the first two touch");
    for (request, outcome) in parts.drain(..2).zip([Ok(()), Err(Errno::IO)]) {
        assert_eq!(queue.complete(Completion { request, outcome }), None);
        assert_eq!((status(), queue.front().in_flight()), (0xff, 1));
    }
    let request = parts.pop().unwrap();
    let whole = queue.complete(Completion { request, outcome: Ok(()) });
    assert_eq!(whole, Some(Err(Errno::IO)));
    assert_eq!((status(), queue.front().in_flight()), (Status::IoError as u8, 0));
}

fn event() -> File {
    File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap())
}

fn count_of(event: &File) -> u64 {
    let mut counter = [0; 8];
    rustix::io::read(event, &mut counter).map_or(0, |_| u64::from_ne_bytes(counter))
}

/// Chains of a guest, each in its own indirect table, and the in-flight log that its monitor keeps.
/// Each queue over it is one life of the daemon.
struct Guest {
    memory: File,
    size: u16,
    region: Arc<InflightRegion>,
    shared: Arc<DeviceShared>,
    call: Arc<CallSlot>,
    called: File,
    available: u16,
    zeroes_are_written: bool,
}

/// Guest memory: 4 MiB of rings, tables, headers and status bytes, then 4 MiB of data.
const GUEST_BYTES: u64 = 8 << 20;
const TABLES_AT: u64 = 1 << 20;
const TABLE_BYTES: u64 = 1 << 10;
const HEADERS_AT: u64 = 3 << 20;
const RANGES_AT: u64 = (3 << 20) + (512 << 10);
const DATA_AT: u64 = 4 << 20;

/// One descriptor of a table: address, bytes, writable by the device.
type Piece = (u64, u32, bool);

impl Guest {
    fn new(size: u16) -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(GUEST_BYTES).unwrap();
        let region = log_for(size).unwrap();
        let (call, called) = (Arc::new(CallSlot::default()), event());
        call.replace(Some(called.try_clone().unwrap()));
        count_of(&called);
        let shared = Arc::new(DeviceShared::new(SectorCount::new(1 << 30)));
        let (available, zeroes_are_written) = (0, false);
        Self { memory, size, region, shared, call, called, available, zeroes_are_written }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, at).unwrap();
    }

    fn word(&self, at: u64) -> u16 {
        let mut word = [0; 2];
        self.memory.read_exact_at(&mut word, at).unwrap();
        u16::from_le_bytes(word)
    }

    fn descriptor(&self, at: u64, (address, bytes, flags, next): (u64, u32, u16, u16)) {
        self.put(at, &address.to_le_bytes());
        self.put(at + 8, &bytes.to_le_bytes());
        self.put(at + 12, &flags.to_le_bytes());
        self.put(at + 14, &next.to_le_bytes());
    }

    fn status_at(head: u16) -> u64 {
        HEADERS_AT + 32 * u64::from(head) + 16
    }

    fn status(&self, head: u16) -> u8 {
        self.word(Self::status_at(head)) as u8
    }

    /// Makes the chain of `head` and puts it into the avail ring.
    fn offer(&mut self, head: u16, kind: u32, sector: u64, pieces: &[Piece]) {
        let header = HEADERS_AT + 32 * u64::from(head);
        self.put(header, &kind.to_le_bytes());
        self.put(header + 8, &sector.to_le_bytes());
        self.put(Self::status_at(head), &[0xff]);
        let whole: Vec<Piece> = [(header, 16, false)]
            .into_iter()
            .chain(pieces.iter().copied())
            .chain([(Self::status_at(head), 1, true)])
            .collect();
        // One large table fits in the space of the unused headers of a small queue.
        let small = whole.len() as u64 * 16 <= TABLE_BYTES;
        let table = if small { TABLES_AT + TABLE_BYTES * u64::from(head) } else { 2 << 20 };
        for (index, (address, bytes, writable)) in whole.iter().enumerate() {
            let flags = u16::from(index + 1 < whole.len()) | if *writable { 2 } else { 0 };
            let next = index as u16 + 1;
            self.descriptor(table + 16 * index as u64, (*address, *bytes, flags, next));
        }
        self.descriptor(16 * u64::from(head), (table, 16 * whole.len() as u32, 4, 0));
        self.make_available(head);
    }

    fn make_available(&mut self, head: u16) {
        let avail = 16 * u64::from(self.size);
        self.put(avail + 4 + 2 * u64::from(self.available % self.size), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(avail + 2, &self.available.to_le_bytes());
    }

    fn read(&mut self, head: u16, sector: u64) {
        self.offer(head, request_type::IN, sector, &[(DATA_AT, 512, true)]);
    }

    fn used_index(&self) -> u16 {
        let avail = 16 * u64::from(self.size);
        self.word((avail + 6 + 2 * u64::from(self.size)).next_multiple_of(4) + 2)
    }

    fn queue(&self) -> VirtQueue {
        let memory = self.memory.try_clone().unwrap();
        let mut parts = parts_over(memory, GUEST_BYTES, self.size, false, event()).unwrap();
        parts.shared = Arc::clone(&self.shared);
        parts.geometry.zeroes_are_written = self.zeroes_are_written;
        VirtQueue::new(parts, Arc::clone(&self.call), self.region.log(0, self.size))
    }

    /// Returns the heads that a next life would find undone, oldest first.
    fn undone(&self) -> Vec<u16> {
        let mut log = self.region.log(0, self.size).unwrap();
        log.recover(self.used_index()).iter().map(|undone| undone.head).collect()
    }
}

#[expect(clippy::vec_box, reason = "requests travel in boxes")]
fn take(queue: &mut VirtQueue) -> Vec<Box<Request>> {
    let mut requests = Vec::new();
    loop {
        queue.take(usize::MAX, || true, |request| requests.push(request));
        if !queue.front().has_undone() {
            return requests;
        }
    }
}

fn finish(queue: &mut VirtQueue, request: Box<Request>) {
    queue.complete(Completion { request, outcome: Ok(()) });
}

fn heads(requests: &[Box<Request>]) -> Vec<u16> {
    requests.iter().map(|request| request.tag as u16).collect()
}

/// Runs `deed` in a child process, which must die of writing to protected memory.
fn die(deed: impl FnOnce()) {
    // SAFETY: the child runs `deed`, which takes no lock that another thread may hold, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child == 0 {
        deed();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(waited, child);
    assert!(libc::WIFSIGNALED(status), "it lived to the end: {status:#x}");
}

#[test]
fn a_request_is_marked_before_it_is_submitted() {
    let mut guest = Guest::new(8);
    guest.read(3, 0);
    guest.read(5, 8);
    let mut queue = guest.queue();
    let mut marked = Vec::new();
    queue.take(usize::MAX, || true, |request| marked.push((request.tag, guest.undone())));
    assert_eq!(marked, [(3, vec![3]), (5, vec![3, 5])]);
}

#[test]
fn the_driver_sees_no_completion_before_publish_and_its_status_is_there_by_then() {
    let mut guest = Guest::new(8);
    guest.read(3, 0);
    let mut queue = guest.queue();
    let request = take(&mut queue).remove(0);
    assert_eq!((guest.status(3), guest.used_index()), (0xff, 0));
    finish(&mut queue, request);
    assert_eq!((guest.status(3), guest.used_index()), (0, 0));
    assert_eq!(queue.publish(), Signal::Sent);
    assert_eq!(guest.used_index(), 1);
}

/// If their marks were cleared, completions that the driver has not seen would be lost.
#[test]
fn dying_before_the_used_index_moves_loses_nothing() {
    let mut guest = Guest::new(8);
    [1, 6, 2].into_iter().for_each(|head| guest.read(head, 0));
    let mut queue = guest.queue();
    let first = take(&mut queue).remove(0);
    finish(&mut queue, first);
    die(|| {
        let start = queue.front().memory().from_guest(0, GUEST_BYTES).unwrap();
        // SAFETY: the mapping is the guest's memory, and this process is about to end.
        unsafe {
            let flags = rustix::mm::MprotectFlags::READ;
            rustix::mm::mprotect(start.cast(), GUEST_BYTES as usize, flags).unwrap();
        }
        queue.publish();
    });
    assert_eq!(guest.used_index(), 0);
    assert_eq!(heads(&take(&mut guest.queue())), [1, 6, 2]);
}

/// Completions that the driver has seen must not be replayed: it may have reused the head or the
/// sectors.
#[test]
fn dying_before_the_marks_are_cleared_repeats_nothing() {
    let mut guest = Guest::new(8);
    [1, 6, 2].into_iter().for_each(|head| guest.read(head, 0));
    let mut queue = guest.queue();
    take(&mut queue).into_iter().skip(1).for_each(|request| finish(&mut queue, request));
    die(|| {
        guest.region.make_deadly(0);
        queue.publish();
    });
    assert_eq!(guest.used_index(), 2);
    assert_eq!(heads(&take(&mut guest.queue())), [1]);
}

/// The log's used index says that all marks of the batch are cleared, so it is written last.
#[test]
fn dying_among_the_marks_of_a_batch_repeats_nothing() {
    // So large that the marks of high heads are in another page than the used index.
    let mut guest = Guest::new(1024);
    [1, 1000, 2].into_iter().for_each(|head| guest.read(head, 0));
    let mut queue = guest.queue();
    take(&mut queue).into_iter().for_each(|request| finish(&mut queue, request));
    die(|| {
        guest.region.make_deadly(1);
        queue.publish();
    });
    assert_eq!(guest.used_index(), 3);
    assert!(take(&mut guest.queue()).is_empty());
}

#[test]
fn a_next_life_repeats_what_is_undone_in_the_order_in_which_it_was_taken_and_calls() {
    let mut guest = Guest::new(8);
    [6, 1, 4].into_iter().for_each(|head| guest.read(head, 8 * u64::from(head)));
    assert_eq!(heads(&take(&mut guest.queue())), [6, 1, 4]);
    count_of(&guest.called);
    let mut queue = guest.queue();
    assert_eq!(count_of(&guest.called), 1, "the last call of the old life may be lost");
    guest.read(0, 0);
    let again = take(&mut queue);
    assert_eq!(heads(&again), [6, 1, 4, 0], "undone ones first, then new ones, nothing twice");
    again.into_iter().for_each(|request| finish(&mut queue, request));
    queue.publish();
    assert!(guest.undone().is_empty());
    assert_eq!((guest.used_index(), queue.next_avail()), (4, 4));
}

/// A request that crashed the daemon crashed each of its lives.
#[test]
fn a_request_that_two_lives_died_with_is_answered_with_an_error_by_the_third() {
    let mut guest = Guest::new(8);
    guest.read(6, 8);
    for _ in 0..2 {
        assert_eq!(heads(&take(&mut guest.queue())), [6]);
    }
    guest.read(2, 16);
    let mut queue = guest.queue();
    let taken = take(&mut queue);
    assert_eq!(heads(&taken), [2], "the other one is not started any more");
    assert_eq!((guest.status(6), queue.front().in_flight()), (Status::IoError as u8, 1));
    queue.publish();
    assert_eq!(guest.undone(), [2]);
    // The head is free; its next request starts with new counts.
    guest.read(6, 24);
    assert_eq!(heads(&take(&mut queue)), [6]);
    assert_eq!(heads(&take(&mut guest.queue())), [2, 6]);
}

#[test]
fn a_life_is_counted_before_it_starts_a_request_again() {
    let mut guest = Guest::new(8);
    guest.read(6, 8);
    take(&mut guest.queue());
    let mut counted = Vec::new();
    guest.queue().take(
        usize::MAX,
        || true,
        |_| counted.extend(guest.region.log(0, 8).unwrap().recover(0)),
    );
    assert_eq!(counted, [Undone { head: 6, started: 2, in_hand: 2 }]);
}

/// The daemon is killed from outside repeatedly: the requests in flight are not at fault.
#[test]
fn a_request_that_the_disk_had_when_the_daemon_died_starts_again() {
    let mut guest = Guest::new(8);
    guest.read(6, 8);
    guest.read(1, 16);
    for _ in 0..DEATHS_MAX {
        let mut queue = guest.queue();
        assert_eq!(heads(&take(&mut queue)), [6, 1]);
        queue.handed_over();
    }
    let mut queue = guest.queue();
    assert!(take(&mut queue).is_empty(), "there is an end to it");
    assert_eq!((guest.status(6), guest.status(1)), (Status::IoError as u8, Status::IoError as u8));
}

/// The batch in which the first life died is replayed one by one, so that only the deadly request
/// is in hand when the next life dies.
#[test]
fn a_deadly_request_is_found_among_others() {
    let mut guest = Guest::new(8);
    [6, 1, 4].into_iter().for_each(|head| guest.read(head, 0));
    take(&mut guest.queue());
    let mut queue = guest.queue();
    for head in [6, 1] {
        let mut replayed = Vec::new();
        queue.take(usize::MAX, || true, |request| replayed.push(request));
        assert_eq!(heads(&replayed), [head]);
        if head == 1 {
            break; // the daemon dies of this request
        }
        queue.handed_over();
    }
    let mut queue = guest.queue();
    assert_eq!(heads(&take(&mut queue)), [6, 4]);
    assert_eq!(guest.status(1), Status::IoError as u8);
}

/// If reading the chain crashes the daemon, it cannot even be answered.
#[test]
fn a_request_that_three_lives_died_with_breaks_its_queue() {
    let mut guest = Guest::new(8);
    guest.read(6, 8);
    take(&mut guest.queue());
    take(&mut guest.queue());
    let mut log = guest.region.log(0, 8).unwrap();
    let undone = log.recover(0)[0];
    assert_eq!(undone.in_hand, 2);
    log.avail.begin_again(undone);
    let mut queue = guest.queue();
    assert!(take(&mut queue).is_empty());
    assert_eq!((queue.front().fault(), guest.status(6)), (Some(QueueFault::Deadly), 0xff));
    assert!(!queue.front().has_available() && !queue.front().has_undone());
}

/// The daemon waited forever for the rest of the undone requests, and with it the close of the
/// disk.
#[test]
fn a_queue_that_breaks_among_what_is_undone_has_nothing_left_to_wait_for() {
    let mut guest = Guest::new(8);
    [6, 1].into_iter().for_each(|head| guest.read(head, 0));
    take(&mut guest.queue());
    guest.descriptor(16 * 6, (GUEST_BYTES, 16, 4, 0));
    let mut queue = guest.queue();
    queue.take_undone(drop);
    assert_eq!(queue.front().fault(), Some(QueueFault::Chain(BadChain::Unmapped)));
    assert!(
        !queue.front().has_available()
            && !queue.front().has_undone()
            && !queue.front().ask_for_kicks()
    );
    assert_eq!(queue.front().in_flight(), 0);
    assert!(
        queue.avail.parts.broken.load(Ordering::Relaxed),
        "left alone when its ring is built anew"
    );
}

/// Between two lives of the daemon a guest may make its chains larger than they were when taken.
#[test]
fn what_is_undone_is_taken_while_the_queue_holds_little_too() {
    let mut guest = Guest::new(256);
    (0..256).for_each(|head| guest.read(head, 0));
    assert_eq!(take(&mut guest.queue()).len(), 256);
    let large = [(DATA_AT, SEGMENT_BYTES_MAX, true); 16];
    (0..256).for_each(|head| guest.offer(head, request_type::IN, 0, &large));
    let mut queue = guest.queue();
    let mut again = 0;
    while queue.front().has_undone() {
        let mut taken = Vec::new();
        while queue.front().has_available() {
            queue.take_undone(|request| taken.push(request));
            assert!(taken.len() <= 8, "{} at once", taken.len());
        }
        queue.take_undone(|_| panic!("taken by a full queue"));
        assert!(!queue.front().ask_for_kicks(), "a full queue has no use for notifications");
        again += taken.len();
        taken.into_iter().for_each(|request| finish(&mut queue, request));
    }
    assert_eq!(again, 256);
}

#[test]
fn a_life_that_stops_before_it_starts_a_request_does_not_count() {
    let mut guest = Guest::new(8);
    [6, 1].into_iter().for_each(|head| guest.read(head, 0));
    take(&mut guest.queue());
    (0..4).for_each(|_| drop(guest.queue()));
    assert_eq!(heads(&take(&mut guest.queue())), [6, 1]);
}

#[test]
fn write_through_makes_every_part_of_every_request_durable() {
    let mut guest = Guest::new(8);
    guest.shared.set_write_through(true);
    let ranges: Vec<u8> = [(0u64, 8u64), (64, 8)]
        .iter()
        .flat_map(|(at, n)| [at.to_le_bytes(), n.to_le_bytes()])
        .flatten()
        .collect();
    guest.put(RANGES_AT, &ranges);
    guest.offer(1, request_type::DISCARD, 0, &[(RANGES_AT, 32, false)]);
    guest.offer(2, request_type::OUT, 0, &[(DATA_AT, 512, false)]);
    let mut queue = guest.queue();
    let taken = take(&mut queue);
    assert_eq!(taken.len(), 3);
    assert!(taken.iter().all(|part| part.durable));
}

#[test]
fn a_flush_goes_to_the_disk() {
    let mut guest = Guest::new(8);
    guest.offer(1, request_type::FLUSH, 0, &[]);
    let taken = take(&mut guest.queue());
    assert_eq!(taken.iter().map(|it| it.op).collect::<Vec<_>>(), [Op::Flush]);
}

/// Pieces may all name the same memory, so a chain of a few pages asked for 64 GiB.
#[test]
fn a_request_is_as_large_as_a_driver_that_keeps_to_the_limits_can_make_it() {
    let mut guest = Guest::new(256);
    let pieces = |count: u32, last: u32| {
        let mut pieces = vec![(DATA_AT, SEGMENT_BYTES_MAX, true); count as usize];
        pieces.push((DATA_AT, last, true));
        pieces
    };
    guest.offer(1, request_type::IN, 0, &pieces(SEGMENTS_MAX, 512));
    let mut queue = guest.queue();
    assert!(take(&mut queue).is_empty());
    assert_eq!((guest.status(1), queue.front().fault()), (Status::IoError as u8, None));
    guest.offer(2, request_type::IN, 0, &pieces(SEGMENTS_MAX - 1, SEGMENT_BYTES_MAX));
    let taken = take(&mut queue);
    assert_eq!(taken[0].op.bytes(), REQUEST_BYTES_MAX);
}

/// Requests that were answered at once, and malformed chains, kept room for their longest list.
#[test]
fn a_slot_shrinks_whichever_way_its_request_went() {
    let long = [(DATA_AT, 512, true); 1000];
    let kept = |guest: &Guest, queue: &VirtQueue| {
        let kept = queue.avail.slots[1].request.as_ref().unwrap().memory.capacity();
        assert!(kept <= PIECES_KEPT, "{kept} pieces, status {}", guest.status(1));
    };
    for (kind, sector, done) in [
        (request_type::IN, 0, true),
        (request_type::IN, u64::MAX / 512 - 1, false),
        (request_type::GET_ID, 0, false),
        (99, 0, false),
    ] {
        let mut guest = Guest::new(1024);
        guest.offer(1, kind, sector, &long);
        let mut queue = guest.queue();
        let taken = take(&mut queue);
        assert_eq!(taken.len(), usize::from(done));
        taken.into_iter().for_each(|request| finish(&mut queue, request));
        assert_ne!(guest.status(1), 0xff);
        kept(&guest, &queue);
    }
    let mut guest = Guest::new(1024);
    let unmapped = [&long[..], &[(GUEST_BYTES, 512, true)]].concat();
    guest.offer(1, request_type::IN, 0, &unmapped);
    let mut queue = guest.queue();
    assert!(take(&mut queue).is_empty());
    assert_eq!(queue.front().fault(), Some(QueueFault::Chain(BadChain::Unmapped)));
    kept(&guest, &queue);
    assert!(guest.undone().is_empty(), "no request, so nothing to repeat");
}

/// The weight in flight is bounded, and all requests are served.
#[test]
fn a_queue_takes_no_more_while_what_it_holds_is_much() {
    let ranges: Vec<u8> = (0..u64::from(RANGES_MAX))
        .flat_map(|index| [(16 * index).to_le_bytes(), 8u64.to_le_bytes()])
        .flatten()
        .collect();
    let discard = [(RANGES_AT, ranges.len() as u32, false)];
    let large = [(DATA_AT, SEGMENT_BYTES_MAX, true); 16];
    for (kind, pieces, most) in
        [(request_type::DISCARD, &discard[..], 16_384), (request_type::IN, &large, 8)]
    {
        let mut guest = Guest::new(1024);
        guest.put(RANGES_AT, &ranges);
        (0..1024).for_each(|head| guest.offer(head, kind, 0, pieces));
        let mut queue = guest.queue();
        let mut answered = 0;
        while answered < 1024 {
            assert!(queue.front().has_available(), "{answered} answered, and no more taken");
            let taken = take(&mut queue);
            assert!((1..=most).contains(&taken.len()), "{} at once", taken.len());
            assert!(!queue.front().has_available() || answered + queue.front().in_flight() == 1024);
            answered += queue.front().in_flight();
            taken.into_iter().for_each(|request| finish(&mut queue, request));
            assert_eq!((queue.front().in_flight(), queue.avail.weight), (0, 0));
            queue.publish();
        }
        assert_eq!(guest.used_index(), 1024);
    }
}

/// A host without a call for zeroes wrote 212 GiB of them for 17 requests, and a stop waited for
/// all.
#[test]
fn zeroes_that_have_to_be_written_are_bounded_by_request_and_by_queue() {
    let mut guest = Guest::new(1024);
    for sectors in [8192, 8193] {
        guest.put(RANGES_AT + 16 * (sectors - 8192), &[[0; 8], sectors.to_le_bytes()].concat());
    }
    (0..512).for_each(|head| {
        guest.offer(head, request_type::WRITE_ZEROES, 0, &[(RANGES_AT, 16, false)]);
    });
    guest.offer(512, request_type::WRITE_ZEROES, 0, &[(RANGES_AT + 16, 16, false)]);
    assert_eq!(
        take(&mut guest.queue()).len(),
        513,
        "a host with a call for them has no such bound"
    );
    guest = Guest { region: log_for(1024).unwrap(), zeroes_are_written: true, ..guest };
    let mut queue = guest.queue();
    let mut requests = 0;
    while queue.front().has_available() {
        let taken = take(&mut queue);
        assert!(taken.len() <= 128, "512 MiB in flight");
        requests += taken.len();
        taken.into_iter().for_each(|request| finish(&mut queue, request));
    }
    assert_eq!((requests, guest.status(512)), (512, Status::Unsupported as u8));
}

/// Unused pieces of a request had no weight, and the room for them was held while it was in flight:
/// 16 KiB for each flush of a ring.
#[test]
fn a_request_in_flight_holds_no_room_for_pieces_that_it_does_not_use() {
    let unused = [(DATA_AT, 512, false); 1000];
    let read = [&unused[..], &[(DATA_AT, 512, true)]].concat();
    let write = [&[(DATA_AT, 512, false)], &[(DATA_AT, 1, true); 1000][..]].concat();
    let discard = [(RANGES_AT, 16, false)].iter().chain(&[(DATA_AT, 1, true); 1000]);
    let discard: Vec<Piece> = discard.copied().collect();
    for (kind, pieces) in [
        (request_type::FLUSH, &unused[..]),
        (request_type::IN, &read),
        (request_type::OUT, &write),
        (request_type::DISCARD, &discard),
    ] {
        let mut guest = Guest::new(1024);
        guest.put(RANGES_AT, &[&[0; 8][..], &8u64.to_le_bytes()].concat());
        guest.offer(1, kind, 0, pieces);
        let mut queue = guest.queue();
        let taken = take(&mut queue);
        let held: usize = taken.iter().map(|request| request.memory.capacity()).sum();
        assert_eq!((taken.len(), queue.front().fault()), (1, None), "kind {kind}");
        assert!(held <= PIECES_KEPT, "kind {kind}: {held} pieces");
        taken.into_iter().for_each(|request| finish(&mut queue, request));
    }
}

/// Reads of zero length are answered as fast as they can be filled in; a stop has to be noticed
/// between them.
#[test]
fn a_batch_ends_when_it_is_told_to() {
    let mut guest = Guest::new(8);
    (0..6).for_each(|head| guest.read(head, 0));
    let mut queue = guest.queue();
    let left = std::cell::Cell::new(2);
    let go_on = || left.replace(left.get() - 1) > 0;
    let taken = queue.take(usize::MAX, go_on, drop);
    assert_eq!((taken.chains, queue.next_avail()), (2, 2));
    assert!(queue.front().has_available());
}

#[test]
fn a_slot_whose_request_is_used_again_starts_anew() {
    let mut guest = Guest::new(8);
    let mut queue = guest.queue();
    guest.offer(1, request_type::FLUSH, 0, &[]);
    let mut request = take(&mut queue).remove(0);
    let fresh = format!("{request:?}");
    request.class = flowstone_block::Class::Journal;
    request.priority = flowstone_block::IoPriority(3);
    request.token = flowstone_block::TokenSource::new().token(4);
    finish(&mut queue, request);
    queue.publish();
    guest.offer(1, request_type::FLUSH, 0, &[]);
    assert_eq!(format!("{:?}", take(&mut queue)[0]), fresh);
}

/// A monitor that truncated its guest's memory ended the daemon with SIGBUS, and all disks with it.
#[test]
fn a_queue_whose_memory_is_lost_takes_nothing_more_and_says_so() {
    let [mut guest, mut other] = [Guest::new(8), Guest::new(8)];
    [&mut guest, &mut other].into_iter().for_each(|guest| guest.read(3, 0));
    let [mut queue, mut others] = [guest.queue(), other.queue()];
    guest.memory.set_len(0).unwrap();
    assert!(
        queue.front().has_available() && queue.front().ask_for_kicks(),
        "its runner is to look at it"
    );
    assert!(take(&mut queue).is_empty());
    assert_eq!(queue.front().fault(), Some(QueueFault::MemoryLost));
    assert!(!queue.front().has_available() && !queue.front().ask_for_kicks());
    assert_eq!((heads(&take(&mut others)), others.front().fault()), (vec![3], None));
}

/// A chain that was partly read must not be used: its header is in lost memory, and a zero header
/// is a read.
#[test]
fn a_chain_in_lost_memory_is_not_submitted() {
    let mut guest = Guest::new(8);
    guest.read(3, 64);
    let mut queue = guest.queue();
    guest.memory.set_len(HEADERS_AT).unwrap();
    assert!(take(&mut queue).is_empty());
    assert_eq!(
        (queue.take(9, || true, |_| unreachable!()).chains, queue.front().in_flight()),
        (0, 0)
    );
    assert_eq!(queue.front().fault(), Some(QueueFault::MemoryLost));
}

/// The data of a read may have been lost; a next life, with its memory back, has to repeat it.
#[test]
fn a_completion_in_lost_memory_is_not_published_and_stays_undone() {
    let mut guest = Guest::new(8);
    [3, 5].into_iter().for_each(|head| guest.read(head, 0));
    let mut queue = guest.queue();
    let requests = take(&mut queue);
    guest.memory.set_len(HEADERS_AT).unwrap();
    requests.into_iter().for_each(|request| finish(&mut queue, request));
    assert_eq!((queue.publish(), guest.used_index()), (Signal::Nothing, 0));
    assert!(queue.front().has_available(), "its runner is to look at it");
    assert!(take(&mut queue).is_empty());
    assert_eq!(
        (queue.front().fault(), queue.front().in_flight()),
        (Some(QueueFault::MemoryLost), 0)
    );
    drop(queue);
    guest.memory.set_len(GUEST_BYTES).unwrap();
    assert_eq!(guest.undone(), [3, 5]);
}

/// A replay that finds its memory lost must neither repeat what it read there nor forget it.
#[test]
fn what_is_undone_in_lost_memory_is_not_submitted_and_stays_undone() {
    let mut guest = Guest::new(8);
    [3, 5].into_iter().for_each(|head| guest.read(head, 0));
    take(&mut guest.queue());
    let mut queue = guest.queue();
    guest.memory.set_len(HEADERS_AT).unwrap();
    // The first one finds the loss, the second one knows of it.
    for fault in [None, Some(QueueFault::MemoryLost)] {
        queue.take_undone(|_| panic!("submitted"));
        assert_eq!(queue.front().fault(), fault);
    }
    assert!(!queue.front().has_undone() && !queue.front().has_available());
    assert_eq!((queue.publish(), guest.used_index()), (Signal::Nothing, 0));
    drop(queue);
    guest.memory.set_len(GUEST_BYTES).unwrap();
    let mut log = guest.region.log(0, 8).unwrap();
    let undone: Vec<_> = log.recover(0).iter().map(|it| (it.head, it.started)).collect();
    assert_eq!(undone, [(3, 2), (5, 1)], "the second one was not begun");
}
