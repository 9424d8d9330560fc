//! The cache over disks that are late, fail and grow: a guest reads what the disk holds.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod held;
mod late;
mod model;
mod race;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use flowstone_block::{
    BlockingDisk, Channel, Class, Completion, Errno, Extent, IoVec, Layer, Op, Origin,
    QueueContext, QueueDepth, Request, Sector, SectorCount,
};
use flowstone_cache::{Cache, Cached, CachedDisk, PolicyKind};
use flowstone_layers::Mem;

use crate::late::Late;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 8 * MIB;

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(SectorCount::from_bytes(DISK_BYTES).unwrap()).unwrap())
}

fn cache(kind: PolicyKind) -> Arc<Cache> {
    Arc::new(Cache::new(MIB, kind).unwrap())
}

/// A guest's queue, with one request at a time.
struct Guest {
    channel: Box<dyn Channel>,
    context: QueueContext,
    class: Class,
}

impl Guest {
    fn new(layer: &dyn Layer) -> Self {
        let origin = Origin::Queue { disk: 0, queue: 0 };
        let context = QueueContext { origin, ..QueueContext::alone(QueueDepth(8)).unwrap() };
        Self { channel: layer.channel(&context).unwrap(), context, class: Class::Data }
    }

    fn run(&mut self, op: Op, memory: &mut [u8]) -> Result<(), Errno> {
        let mut request = Request::new(op, 3);
        request.class = self.class;
        // SAFETY: the memory is borrowed until the request is back.
        request.memory.push(unsafe { IoVec::of(memory) });
        self.channel.submit(request);
        self.channel.kick();
        let mut done: Vec<Completion> = Vec::new();
        while done.is_empty() {
            self.context.reactor.sleep(|| self.channel.next_look());
            self.channel.reap(&mut done);
        }
        let Completion { request, outcome } = done.pop().unwrap();
        assert_eq!((request.op, request.tag, request.memory.len()), (op, 3, 1));
        assert_eq!(request.memory[0].address(), memory.as_mut_ptr());
        outcome
    }

    fn read(&mut self, start: u64, count: u64) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0xcc; count as usize * 512];
        self.run(Op::Read(extent(start, count)), &mut data).map(|()| data)
    }

    fn write(&mut self, start: u64, count: u64, value: u8) -> Result<(), Errno> {
        let mut data = vec![value; count as usize * 512];
        self.run(Op::Write(extent(start, count)), &mut data)
    }
}

/// A disk with a cache, the disk below, and a guest.
struct Place {
    below: Arc<Late>,
    cached: Cached,
    disk: Arc<CachedDisk>,
    guest: Guest,
}

impl Place {
    fn with(late: Late, kind: PolicyKind, holds_journals: bool) -> Self {
        let (below, layer) = late.layer();
        let cached = Cached::new(layer, cache(kind), 0, holds_journals);
        let (disk, guest) = (cached.disk(), Guest::new(&cached));
        Self { below, cached, disk, guest }
    }

    fn new() -> Self {
        Self::with(Late::new(mem()), PolicyKind::Lru, false)
    }

    /// Returns the reads received by the disk below.
    fn reads(&self) -> u64 {
        self.below.reads.load(Ordering::Relaxed)
    }
}

#[test]
fn what_was_read_or_written_is_read_from_memory() {
    for kind in [PolicyKind::Lru, PolicyKind::S3Fifo, PolicyKind::Adaptive] {
        let mut place = Place::with(Late::new(mem()), kind, false);
        place.guest.write(0, 16, 7).unwrap();
        assert_eq!(place.guest.read(0, 16).unwrap(), [7; 16 * 512]);
        assert_eq!(place.reads(), 0, "{kind:?}");
        assert_eq!(place.guest.read(800, 64).unwrap(), [0; 64 * 512]);
        assert_eq!(place.guest.read(808, 8).unwrap(), [0; 8 * 512]);
        assert_eq!(place.reads(), 1, "{kind:?}");
        assert_eq!(place.below.writes.load(Ordering::Relaxed), 1, "writes go through");
        let (data, held) = (place.disk.of_class(Class::Data), place.disk.held());
        assert_eq!((data.hits, data.misses), (3, 8));
        assert_eq!((place.disk.counters().sum(|it| &it.insertions), held.blocks), (10, 10));
    }
}

/// Its literal rule requires a second access.
#[test]
fn multicache_takes_a_block_in_when_it_is_used_again() {
    let mut place = Place::with(Late::new(mem()), PolicyKind::MultiCache, false);
    for reads in [1, 2, 2] {
        place.guest.read(0, 8).unwrap();
        assert_eq!(place.reads(), reads);
    }
    assert_eq!(place.disk.counters().sum(|it| &it.refusals), 1);
}

/// Each block between two held ones was a request of its own: after random reads, streams were
/// slow.
#[test]
fn a_stream_over_held_blocks_is_read_ahead_in_few_requests() {
    let disk = mem();
    let mut writer = Guest::new(&*disk);
    let value = |block: u64| (block % 251) as u8;
    (0..256).for_each(|block| writer.write(block * 8, 8, value(block)).unwrap());
    let (below, layer) = Late::new(disk).layer();
    let cache = Arc::new(Cache::new(64 * MIB, PolicyKind::Lru).unwrap());
    let cached = Cached::new(layer, cache, 0, false);
    let mut guest = Guest::new(&cached);
    (1..64).for_each(|number| _ = guest.read(number * 4 % 61 * 32, 8).unwrap());
    let before = below.reads.load(Ordering::Relaxed);
    for block in 0..256 {
        assert_eq!(guest.read(block * 8, 8).unwrap(), [value(block); 4096], "block {block}");
    }
    let reads = below.reads.load(Ordering::Relaxed) - before;
    let used = cached.disk().held().prefetch_used;
    assert!(reads <= 12 && used > 180, "{reads} reads, {used} blocks were read ahead");
}

#[test]
fn parts_of_blocks_are_read_as_whole_blocks_and_written_as_they_are() {
    let mut place = Place::new();
    place.guest.read(3, 1).unwrap();
    place.guest.read(5, 14).unwrap();
    assert_eq!(place.reads(), 2, "the first block was held, and the others were not");
    assert_eq!(place.guest.read(0, 24).unwrap(), [0; 24 * 512]);
    assert_eq!(place.reads(), 2);
    place.guest.write(7, 10, 9).unwrap();
    let mut expected = vec![0; 24 * 512];
    expected[7 * 512..17 * 512].fill(9);
    assert_eq!(place.guest.read(0, 24).unwrap(), expected);
    assert_eq!(place.reads(), 3, "both ends were written in part");
    assert_eq!(place.guest.read(8, 8).unwrap(), [9; 4096]);
    assert_eq!(place.reads(), 3);
}

#[test]
fn journals_pass_by_unless_they_are_to_be_held() {
    for holds_journals in [false, true] {
        let mut place = Place::with(Late::new(mem()), PolicyKind::Lru, holds_journals);
        place.guest.write(0, 8, 1).unwrap();
        place.guest.class = Class::Journal;
        place.guest.write(0, 8, 2).unwrap();
        place.guest.write(16, 8, 2).unwrap();
        let held = u64::from(holds_journals) * 2;
        assert_eq!(place.disk.held().blocks, held, "what was data is one no more");
        assert_eq!(place.guest.read(0, 8).unwrap(), [2; 4096]);
        assert_eq!(place.disk.held().blocks, held);
        assert_eq!(place.disk.counters().sum(|it| &it.bypassed), u64::from(!holds_journals) * 3);
    }
}

#[test]
fn what_is_discarded_or_zeroed_is_held_no_more() {
    let unmap = |extent| Op::WriteZeroes { extent, unmap: true };
    let ops: [fn(Extent) -> Op; 2] = [Op::Discard, unmap];
    for op in ops {
        // A few blocks, and the whole disk.
        for (start, count, left) in [(8, 9, 2), (0, DISK_BYTES / 512, 0)] {
            let mut place = Place::new();
            place.guest.write(0, 32, 7).unwrap();
            let range = extent(start, count);
            place.guest.run(op(range), &mut []).unwrap();
            assert_eq!(place.disk.held().blocks, left);
            let read = place.guest.read(0, 32).unwrap();
            let at = |sector: u64| read[sector as usize * 512];
            assert_eq!((at(8), at(16)), (0, 0));
            assert_eq!(at(17), if left == 2 { 7 } else { 0 });
        }
    }
}

/// A large write leaves neither its own data nor older data in the cache.
#[test]
fn very_large_requests_pass_by() {
    let mut place = Place::new();
    place.guest.write(0, 8, 1).unwrap();
    place.guest.write(0, 4096, 2).unwrap();
    assert_eq!(place.disk.held().blocks, 0);
    assert_eq!(place.guest.read(0, 4096).unwrap(), vec![2; 4096 * 512]);
    assert_eq!(place.disk.held().blocks, 0);
    assert_eq!(place.disk.counters().sum(|it| &it.bypassed), 1024);
}

#[test]
fn a_write_that_failed_is_not_held_and_the_block_can_be_again() {
    let mut place = Place::with(Late { failing: 1, ..Late::new(mem()) }, PolicyKind::Lru, false);
    place.guest.read(0, 8).unwrap();
    place.guest.write(0, 8, 7).unwrap_err();
    assert_eq!(place.disk.held().blocks, 0);
    place.guest.read(0, 8).unwrap();
    assert_eq!(place.disk.held().blocks, 1);
}

/// A frame contains data that another guest has read before.
#[test]
fn a_read_that_failed_leaves_the_guests_memory_as_it_was() {
    let late = Late { bad: Some(80_000 / 8), ..Late::new(mem()) };
    let mut place = Place::with(late, PolicyKind::Lru, false);
    for block in 0..300 {
        place.guest.write(block * 8, 8, 7).unwrap();
    }
    let mut data = vec![0xcc; 4096];
    let read = Op::Read(extent(80_000 / 8, 8));
    assert_eq!(place.guest.run(read, &mut data), Err(Errno::IO));
    assert!(data.iter().all(|byte| *byte == 0xcc));
}

/// The whole block is read for a request of a part of it, and a sector of the rest is bad.
#[test]
fn a_bad_sector_costs_nobody_else_a_read() {
    let late = Late { bad: Some(5), ..Late::new(mem()) };
    let mut place = Place::with(late, PolicyKind::Lru, false);
    assert_eq!(place.guest.read(0, 4).unwrap(), [0; 4 * 512]);
    assert_eq!(place.guest.read(5, 3), Err(Errno::IO));
    assert_eq!(place.guest.read(0, 8), Err(Errno::IO));
    assert_eq!(place.disk.held().blocks, 0);
}

/// A disk need not end with a whole block; when it grows, the last block becomes whole.
#[test]
fn the_end_of_a_disk_is_read_as_it_is_and_held_when_it_is_whole() {
    for sectors in [3, 7] {
        let late = Late::new(mem());
        late.capacity.store(1000 + sectors, Ordering::Relaxed);
        let mut place = Place::with(late, PolicyKind::Lru, false);
        place.guest.write(1000, sectors, 5).unwrap();
        for _ in 0..2 {
            assert_eq!(place.guest.read(1000, sectors).unwrap(), vec![5; sectors as usize * 512]);
        }
        assert_eq!((place.reads(), place.disk.held().blocks), (2, 0));
        place.below.capacity.store(1008, Ordering::Relaxed);
        for _ in 0..2 {
            place.guest.read(1000, 8).unwrap();
        }
        assert_eq!((place.reads(), place.disk.held().blocks), (3, 1));
    }
}

/// Data that a guest changes during a write is the same on the disk and in the cache.
#[test]
fn a_guest_that_changes_what_it_writes_makes_no_difference() {
    let late = Late { is_late: true, ..Late::new(mem()) };
    let mut place = Place::with(late, PolicyKind::Lru, false);
    let mut data = vec![1; 4096];
    let mut request = Request::new(Op::Write(extent(0, 8)), 0);
    // SAFETY: the memory lives until the request is back.
    request.memory.push(unsafe { IoVec::of(&mut data) });
    let address = request.memory[0].address();
    place.guest.channel.submit(request);
    place.guest.channel.kick();
    // SAFETY: within the buffer; a guest does as it likes.
    unsafe { address.write_bytes(2, 2048) };
    let mut done = Vec::new();
    while done.is_empty() {
        place.guest.context.reactor.sleep(|| place.guest.channel.next_look());
        place.guest.channel.reap(&mut done);
    }
    let held = place.guest.read(0, 8).unwrap();
    assert_eq!((place.reads(), &held), (0, &vec![1; 4096]));
    let mut disk = vec![0; 4096];
    let own = place.cached.disk();
    assert_eq!(own.held().blocks, 1);
    BlockingDisk::new(&place.cached).unwrap().read(Sector::new(0), &mut disk).unwrap();
    assert_eq!((place.reads(), disk), (1, held), "the daemon's own reads go to the disk");
}

#[test]
fn disks_share_memory_and_no_blocks() {
    let cache = cache(PolicyKind::Lru);
    let disks = [0, 1].map(|number| {
        let (_, layer) = Late::new(mem()).layer();
        Cached::new(layer, Arc::clone(&cache), number, false)
    });
    let mut guests = disks.each_ref().map(|disk| Guest::new(disk));
    guests[0].write(0, 8, 1).unwrap();
    guests[1].write(0, 8, 2).unwrap();
    assert_eq!(guests[0].read(0, 8).unwrap(), [1; 4096]);
    assert_eq!(guests[1].read(0, 8).unwrap(), [2; 4096]);
    assert_eq!(cache.bytes(), 8192);
    // One of them uses all of it.
    for block in 0..512 {
        guests[1].write(block * 8, 8, 3).unwrap();
    }
    let [first, second] = disks.each_ref().map(|disk| disk.disk().held());
    assert_eq!((first.blocks, first.evictions), (0, 1));
    assert!(second.blocks > 200 && cache.bytes() <= cache.target_bytes());
    assert_eq!(guests[0].read(0, 8).unwrap(), [1; 4096]);
}
