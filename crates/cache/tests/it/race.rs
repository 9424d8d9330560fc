//! Queues of two disks, each on its own thread, over disks that are late and fail: a read never
//! returns data from before the last write, and at the end the cache holds the disks' contents.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::{
    Channel, Class, Completion, Errno, Extent, IoVec, Layer, Op, Origin, QueueContext, QueueDepth,
    Request,
};
use flowstone_cache::{Cache, Cached, PolicyKind, VmSize, Vms};
use flowstone_layers::Verify;

use super::{DISK_BYTES, Guest, MIB, extent, mem};
use crate::late::Late;

const SECTORS: u64 = DISK_BYTES / 512;
/// Region of most requests, so that they collide.
const HOT_SECTORS: u64 = 512;
const QUEUES: u16 = 4;
const REQUESTS: usize = 4000;
const CACHE_BYTES: u64 = 3 * MIB;
const DEPTH: usize = 8;

struct Queue {
    channel: Box<dyn Channel>,
    context: QueueContext,
    random: fastrand::Rng,
    /// Memory of requests in flight, by tag.
    memory: Vec<Option<Vec<u8>>>,
    done: Vec<Completion>,
    failed_writes: usize,
}

impl Queue {
    fn extent(&mut self) -> Extent {
        let range = if self.random.u8(0..10) == 0 { SECTORS } else { HOT_SECTORS };
        let (start, count) = match self.random.u8(0..20) {
            0 => (self.random.u64(0..range), self.random.u64(1..4096)),
            1..6 => (self.random.u64(0..range), self.random.u64(1..40)),
            _ => (self.random.u64(0..range / 8) * 8, self.random.u64(1..5) * 8),
        };
        extent(start, count.min(SECTORS - start))
    }

    fn op(&mut self) -> Op {
        let extent = self.extent();
        match self.random.u8(0..20) {
            0..9 => Op::Read(extent),
            9..17 => Op::Write(extent),
            17 => Op::Discard(extent),
            18 => Op::WriteZeroes { extent, unmap: self.random.bool() },
            _ => Op::Flush,
        }
    }

    fn submit(&mut self, tag: usize) {
        let op = self.op();
        let mut request = Request::new(op, tag as u32);
        request.class = match self.random.u8(0..10) {
            0 => Class::Journal,
            1 => Class::Metadata,
            _ => Class::Data,
        };
        if matches!(op, Op::Read(_) | Op::Write(_)) {
            let mut memory = vec![0; op.bytes() as usize];
            memory.chunks_mut(512).for_each(|sector| sector.fill(self.random.u8(1..)));
            // In pieces, as guests have it.
            let cut = self.random.usize(0..=memory.len() / 512) * 512;
            let (first, second) = memory.split_at_mut(cut);
            // SAFETY: the memory is kept until the request is back.
            request.memory.extend(unsafe { [IoVec::of(first), IoVec::of(second)] });
            self.memory[tag] = Some(memory);
        }
        self.channel.submit(request);
    }

    fn run(&mut self) {
        let mut free: Vec<usize> = (0..DEPTH).collect();
        let mut submitted = 0;
        while submitted < REQUESTS || free.len() < DEPTH {
            while submitted < REQUESTS
                && let Some(tag) = free.pop()
            {
                self.submit(tag);
                submitted += 1;
                if self.random.u8(0..4) == 0 {
                    break;
                }
            }
            self.channel.kick();
            self.context.reactor.sleep(|| self.channel.next_look());
            self.channel.reap(&mut self.done);
            for Completion { request, outcome } in self.done.drain(..) {
                match (request.op, outcome) {
                    (_, Ok(())) => {}
                    (op, Err(Errno::IO)) if op.modifies() => self.failed_writes += 1,
                    (op, error) => panic!("{op:?}: {error:?}"),
                }
                self.memory[request.tag as usize] = None;
                free.push(request.tag as usize);
            }
        }
    }
}

/// Makes random VMs.
fn random_vms(random: &mut fastrand::Rng) -> Vms {
    let count = random.usize(0..=4);
    let size = |_| VmSize { cpus: random.u32(0..9), memory: random.u64(0..4) << 30 };
    let sizes: Vec<_> = (0..count).map(size).collect();
    Vms::new(&sizes, [(0, random.usize(0..5)), (1, random.usize(0..5))])
}

fn race(kind: PolicyKind, seed: u64) {
    let cache = Arc::new(Cache::new(CACHE_BYTES, kind).unwrap());
    let disks = [0, 1].map(|number| {
        let disk = mem();
        let late = Late { is_late: true, failing: 30, ..Late::new(Arc::clone(&disk)) };
        let (_, layer) = late.layer();
        (disk, Arc::new(Cached::new(layer, Arc::clone(&cache), number, false)))
    });
    let tops = disks.each_ref().map(|(_, cached)| Verify::new(Arc::clone(cached) as _));
    std::thread::scope(|scope| {
        let start = |number: u16| {
            let top = &tops[usize::from(number) % 2];
            scope.spawn(move || {
                let origin = Origin::Queue { disk: u32::from(number) % 2, queue: number };
                let context = QueueContext::alone(QueueDepth(DEPTH as u16)).unwrap();
                let context = QueueContext { origin, ..context };
                let mut queue = Queue {
                    channel: top.channel(&context).unwrap(),
                    context,
                    random: fastrand::Rng::with_seed(seed.wrapping_add(u64::from(number))),
                    memory: vec![None; DEPTH],
                    done: Vec::new(),
                    failed_writes: 0,
                };
                queue.run();
                assert!(queue.failed_writes > 0);
            })
        };
        let queues: Vec<_> = (0..QUEUES).map(start).collect();
        let mut random = fastrand::Rng::with_seed(seed);
        while queues.iter().any(|queue| !queue.is_finished()) {
            cache.set_target(random.u64(MIB..=CACHE_BYTES));
            assert!(cache.bytes() <= CACHE_BYTES);
            cache.set_vms(random_vms(&mut random));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for (disk, cached) in &disks {
        let held = cached.disk().held();
        let counters = cached.disk();
        let read = counters.of_class(Class::Data);
        println!("{kind:?}: {held:?}, {read:?}");
        assert!(held.evictions > 0 && read.hits > 0 && read.misses > 0);
        let mut guests = [Guest::new(&**cached), Guest::new(&**disk)];
        // Block by block: held blocks are not read from the disk together with others.
        for start in (0..SECTORS).step_by(8) {
            let [cached, disk] = guests.each_mut().map(|guest| guest.read(start, 8).unwrap());
            assert!(cached == disk, "sectors {start}+8 differ");
            // And as held from now on.
            assert!(guests[0].read(start, 8).unwrap() == disk, "sectors {start}+8 differ");
        }
    }
    // No frame is lost: all that hold no block are returned.
    cache.set_target(MIB);
    let (held, resident) = (cache.bytes(), cache.resident_bytes());
    assert!(held <= resident && resident <= MIB, "{held} held, {resident} resident");
    assert!(resident - held <= 512 << 12, "{held} held, {resident} resident");
}

#[test]
fn a_cache_is_never_behind_its_disks() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for kind in PolicyKind::ALL {
        race(kind, seed);
    }
}
