//! One thread, several queues of two disks, and a disk below that is late in virtual time, tears,
//! fails, grows, and remembers each value of each sector: a read returns what the disk held at some
//! time between submission and completion; a change is on the disk when it completes; each request
//! completes once, unmodified.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use flowstone_block::{
    Channel, Class, Completion, Errno, Geometry, IoVec, Layer, NextLook, Op, Origin, QueueContext,
    QueueDepth, Request, SectorCount, Token, TokenSource,
};
use flowstone_cache::{Cache, Cached, PolicyKind, VmSize, Vms};

use super::{MIB, extent, mem};

const SECTORS: u64 = 8 * MIB / 512;
const HOT: u64 = 700;
const DEPTH: usize = 10;
/// Depth of queues that are kicked rarely.
const DEPTH_OF_BATCHES: usize = 100;
const WORDS: usize = 64;

/// Current and past contents of a disk.
struct Held {
    now: Vec<[u64; WORDS]>,
    /// For each sector: times, and the words that it was filled with from then on.
    then: Vec<Vec<(u64, u64)>>,
    capacity: u64,
    random: fastrand::Rng,
    fails: bool,
    read_sectors: u64,
    reads: u64,
}

struct Sim {
    held: Mutex<Held>,
    time: Arc<AtomicU64>,
    geometry: Geometry,
}

struct SimLayer(Arc<Sim>);

struct SimChannel {
    sim: Arc<Sim>,
    #[expect(clippy::vec_box, reason = "requests travel in their boxes")]
    waiting: Vec<Box<Request>>,
    done: Vec<Completion>,
}

impl Sim {
    fn new(time: &Arc<AtomicU64>, capacity: u64, seed: u64, fails: bool) -> Arc<Self> {
        let held = Held {
            now: vec![[0; WORDS]; SECTORS as usize],
            then: vec![vec![(0, 0)]; SECTORS as usize],
            capacity,
            random: fastrand::Rng::with_seed(seed),
            fails,
            read_sectors: 0,
            reads: 0,
        };
        let geometry = mem().geometry();
        Arc::new(Self { held: Mutex::new(held), time: Arc::clone(time), geometry })
    }

    fn tick(&self) -> u64 {
        self.time.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn carry_out(&self, mut request: Box<Request>) -> Completion {
        let time = self.tick();
        let held = &mut *self.held.lock().unwrap();
        let Some(extent) = request.op.extent() else {
            return Completion { request, outcome: Ok(()) };
        };
        let (start, count) = (extent.start().get(), extent.bytes() / 512);
        assert!(start + count <= held.capacity, "past the end of the disk: {:?}", request.op);
        if matches!(request.op, Op::Read(_) | Op::Write(_)) {
            let bytes: u64 = request.memory.iter().map(|piece| piece.bytes() as u64).sum();
            assert_eq!(bytes, count * 512, "{:?}", request.op);
            assert!(request.memory.len() <= 1024, "{} pieces", request.memory.len());
        }
        let outcome =
            if held.fails && held.random.u8(0..25) == 0 { Err(Errno::IO) } else { Ok(()) };
        let upto = if outcome.is_ok() { count } else { held.random.u64(0..=count) };
        for index in 0..upto {
            let sector = (start + index) as usize;
            let value = match request.op {
                Op::Read(_) => {
                    held.read_sectors += 1;
                    let bytes = held.now[sector].map(u64::to_le_bytes);
                    request.copy_in(index as usize * 512, bytes.as_flattened());
                    continue;
                }
                Op::Write(_) => {
                    let mut bytes = [0; 512];
                    request.copy_out(index as usize * 512, &mut bytes);
                    let word =
                        |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().unwrap());
                    std::array::from_fn(word)
                }
                _ => [0; WORDS],
            };
            assert!(value.iter().all(|word| *word == value[0]), "a torn sector came down");
            held.now[sector] = value;
            held.then[sector].push((time, value[0]));
        }
        held.reads += u64::from(matches!(request.op, Op::Read(_)));
        Completion { request, outcome }
    }
}

impl Layer for SimLayer {
    fn geometry(&self) -> Geometry {
        let capacity = SectorCount::new(self.0.held.lock().unwrap().capacity);
        Geometry { capacity, ..self.0.geometry }
    }

    fn channel(&self, _: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let sim = Arc::clone(&self.0);
        Ok(Box::new(SimChannel { sim, waiting: Vec::new(), done: Vec::new() }))
    }
}

impl Channel for SimChannel {
    fn submit(&mut self, request: Box<Request>) {
        self.waiting.push(request);
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut random = self.sim.held.lock().unwrap().random.fork();
        for _ in 0..random.usize(0..4) {
            if !self.waiting.is_empty() {
                let request = self.waiting.swap_remove(random.usize(0..self.waiting.len()));
                self.done.push(self.sim.carry_out(request));
            }
        }
        for _ in 0..random.usize(0..4) {
            if !self.done.is_empty() {
                done.push(self.done.swap_remove(random.usize(0..self.done.len())));
            }
        }
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.waiting.is_empty() || !self.done.is_empty())
    }
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        while let Some(request) = self.waiting.pop() {
            self.sim.carry_out(request);
        }
    }
}

/// A guest's request as submitted.
struct Sent {
    op: Op,
    class: Class,
    durable: bool,
    token: Token,
    pieces: Vec<(*mut u8, usize)>,
    memory: Vec<u64>,
    since: u64,
    word: u64,
    scribbled: bool,
}

struct Queue {
    channel: Box<dyn Channel>,
    tokens: TokenSource,
    sent: Vec<Option<Sent>>,
    next: u64,
    disk: usize,
}

struct World {
    random: fastrand::Rng,
    time: Arc<AtomicU64>,
    caches: Vec<Arc<Cache>>,
    max: u64,
    sims: Vec<Arc<Sim>>,
    disks: Vec<Arc<dyn Layer>>,
    queues: Vec<Queue>,
    words: u64,
    reads: u64,
    errors: u64,
    depth: usize,
}

impl World {
    fn new(kind: PolicyKind, seed: u64, fails: bool, is_nested: bool) -> Self {
        Self::with_depth(kind, seed, fails, is_nested, DEPTH)
    }

    fn with_depth(kind: PolicyKind, seed: u64, fails: bool, is_nested: bool, depth: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let time = Arc::new(AtomicU64::new(0));
        let max = random.u64(1..5) * MIB;
        let caches: Vec<_> = (0..2).map(|_| Arc::new(Cache::new(max, kind).unwrap())).collect();
        let mut sims = Vec::new();
        let mut disks: Vec<Arc<dyn Layer>> = Vec::new();
        for number in 0..2 {
            let sim = Sim::new(&time, random.u64(HOT / 2..SECTORS), random.u64(..), fails);
            let mut layer: Arc<dyn Layer> = Arc::new(SimLayer(Arc::clone(&sim)));
            if is_nested {
                layer = Arc::new(Cached::new(layer, Arc::clone(&caches[1]), number, true));
            }
            disks.push(Arc::new(Cached::new(layer, Arc::clone(&caches[0]), number, false)));
            sims.push(sim);
        }
        let mut world = Self {
            random,
            time,
            caches,
            max,
            sims,
            disks,
            queues: Vec::new(),
            words: 1,
            reads: 0,
            errors: 0,
            depth,
        };
        for number in 0..4 {
            let queue = world.queue(number);
            world.queues.push(queue);
        }
        world
    }

    fn queue(&self, number: usize) -> Queue {
        let disk = number % 2;
        let origin = Origin::Queue { disk: disk as u32, queue: number as u16 };
        let context = QueueContext::alone(QueueDepth(self.depth as u16)).unwrap();
        let context = QueueContext { origin, ..context };
        Queue {
            channel: self.disks[disk].channel(&context).unwrap(),
            tokens: TokenSource::new(),
            sent: (0..self.depth).map(|_| None).collect(),
            next: 0,
            disk,
        }
    }

    /// Returns the next operation of the queue.
    fn op(&mut self, number: usize) -> Op {
        let random = &mut self.random;
        let queue = &mut self.queues[number];
        let capacity = self.sims[queue.disk].held.lock().unwrap().capacity;
        let range = if random.u8(0..8) == 0 { capacity } else { HOT.min(capacity) };
        let (mut start, count) = match random.u16(0..400) {
            0 => (random.u64(0..range), random.u64(2040..2060)),
            1 => (random.u64(0..range / 8) * 8, 2048),
            2 => (random.u64(0..range / 8) * 8, 2048 + 8),
            3 => (0, capacity),
            4 => (random.u64(0..range), random.u64(1..5000)),
            5..100 => (random.u64(0..range), random.u64(1..40)),
            100..110 => (capacity.saturating_sub(random.u64(1..30)), 30),
            _ => (random.u64(0..range / 8) * 8, random.u64(1..5) * 8),
        };
        let follows = random.u8(0..3) == 0 && queue.next < capacity;
        if follows {
            start = queue.next;
        }
        let count = count.min(capacity - start);
        let at = extent(start, count);
        let op = match random.u8(0..40) {
            _ if follows => Op::Read(at),
            0..18 => Op::Read(at),
            18..34 => Op::Write(at),
            34..36 => Op::Discard(at),
            36..38 => Op::WriteZeroes { extent: at, unmap: random.bool() },
            _ => Op::Flush,
        };
        if let Op::Read(_) = op {
            queue.next = start + count;
        }
        op
    }

    fn submit(&mut self, number: usize) {
        let free = self.queues[number].sent.iter().position(Option::is_none);
        let Some(tag) = free else { return };
        let op = self.op(number);
        let random = &mut self.random;
        let queue = &mut self.queues[number];
        self.words += 1;
        let word = self.words << 8 | (queue.disk as u64 + 1);
        let mut request = Request::new(op, tag as u32);
        request.class = match random.u8(0..10) {
            0 => Class::Journal,
            1 => Class::Metadata,
            _ => Class::Data,
        };
        request.durable = random.bool();
        request.token = queue.tokens.token(tag);
        let mut memory = Vec::new();
        if matches!(op, Op::Read(_) | Op::Write(_)) {
            let bytes = op.bytes() as usize;
            memory = vec![word; bytes / 8];
            // SAFETY: the memory is kept until the request is back.
            request.memory = unsafe { in_pieces(memory.as_mut_ptr().cast(), bytes, random) };
        }
        let pieces = request.memory.iter().map(|piece| (piece.address(), piece.bytes())).collect();
        let scribbled = random.u8(0..10) == 0 && matches!(op, Op::Write(_));
        let since = self.time.fetch_add(1, Ordering::Relaxed) + 1;
        let token = request.token;
        let (class, durable) = (request.class, request.durable);
        let sent = Sent { op, class, durable, token, pieces, memory, since, word, scribbled };
        let sent = queue.sent[tag].insert(sent);
        queue.channel.submit(request);
        if scribbled {
            // A guest that modifies the data of its write.
            let other = word + (1 << 60);
            let base = sent.memory.as_mut_ptr();
            // SAFETY: as long as that.
            (0..sent.memory.len()).for_each(|at| unsafe { base.add(at).write_volatile(other) });
        }
    }

    fn reap(&mut self, number: usize) -> usize {
        let queue = &mut self.queues[number];
        let mut done = Vec::new();
        queue.channel.kick();
        queue.channel.reap(&mut done);
        let count = done.len();
        for Completion { request, outcome } in done {
            let sent = queue.sent[request.tag as usize].take().expect("it came back twice");
            assert_eq!(request.op, sent.op);
            assert_eq!(request.token, sent.token);
            assert_eq!(request.origin, Origin::default());
            assert_eq!((request.class, request.durable), (sent.class, sent.durable));
            let pieces: Vec<_> =
                request.memory.iter().map(|piece| (piece.address(), piece.bytes())).collect();
            assert!(pieces == sent.pieces, "{:?}: other memory", sent.op);
            if outcome.is_err() {
                self.errors += 1;
                continue;
            }
            let Some(extent) = sent.op.extent() else { continue };
            let held = self.sims[queue.disk].held.lock().unwrap();
            for index in 0..extent.bytes() / 512 {
                let sector = extent.start().get() + index;
                let then = &held.then[sector as usize];
                let first = then.partition_point(|(time, _)| *time < sent.since) - 1;
                if let Op::Read(_) = sent.op {
                    let words = &sent.memory[index as usize * WORDS..][..WORDS];
                    assert!(words.iter().all(|it| *it == words[0]), "{:?}: torn", sent.op);
                    assert!(
                        then[first..].iter().any(|(_, word)| *word == words[0]),
                        "{:?}: sector {sector} of disk {} reads {:x}, and held {:x?} since {}",
                        sent.op,
                        queue.disk,
                        words[0],
                        &then[first..],
                        sent.since
                    );
                } else {
                    let word = if let Op::Write(_) = sent.op { sent.word } else { 0 };
                    let has = then[first + 1..].iter().any(|(_, it)| {
                        *it == word || sent.scribbled && *it == sent.word + (1 << 60)
                    });
                    assert!(has, "{:?} has returned and is not on the disk", sent.op);
                }
            }
            self.reads += 1;
        }
        count
    }

    fn in_flight(&self, number: usize) -> usize {
        self.queues[number].sent.iter().flatten().count()
    }

    fn again(&mut self, number: usize) {
        let fresh = self.queue(number);
        let old = std::mem::replace(&mut self.queues[number], fresh);
        let Queue { channel, sent, .. } = old;
        drop(channel);
        drop(sent);
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            let number = self.random.usize(0..4);
            match self.random.u16(0..1000) {
                0..10 => {
                    let which = self.random.usize(0..2);
                    let target = self.random.u64(MIB / 2..=self.max + MIB);
                    self.caches[which].set_target(target);
                }
                10..14 if self.in_flight(number) == 0 => self.again(number),
                14 => self.again(number),
                15..20 => {
                    let mut held = self.sims[number % 2].held.lock().unwrap();
                    held.capacity = (held.capacity + self.random.u64(1..40)).min(SECTORS);
                }
                20..500 => self.submit(number),
                _ => {
                    self.reap(number);
                }
            }
        }
    }

    /// Like `run`, but VMs come, go and change, many requests precede each kick, and targets change
    /// more often.
    fn run_in_batches(&mut self, steps: usize) {
        for _ in 0..steps {
            let number = self.random.usize(0..4);
            match self.random.u16(0..1000) {
                0..40 => {
                    let which = self.random.usize(0..2);
                    let target = self.random.u64(MIB / 2..=self.max + MIB);
                    self.caches[which].set_target(target);
                }
                40..120 => self.set_vms(),
                120..130 if self.in_flight(number) == 0 => self.again(number),
                // With reads that were never kicked, and others in flight.
                130..135 => self.again(number),
                135..145 => {
                    let mut held = self.sims[number % 2].held.lock().unwrap();
                    held.capacity = (held.capacity + self.random.u64(1..40)).min(SECTORS);
                }
                145..300 => {
                    let count = self.random.usize(1..self.depth);
                    (0..count).for_each(|_| self.submit(number));
                }
                300..330 => {
                    self.queues[number].channel.next_look();
                }
                _ => {
                    self.reap(number);
                }
            }
        }
    }

    fn set_vms(&mut self) {
        let random = &mut self.random;
        let count = random.usize(0..5);
        let sizes: Vec<_> = (0..count)
            .map(|_| VmSize { cpus: random.u32(0..9), memory: random.u64(0..4) << 30 })
            .collect();
        let mut disks = Vec::new();
        for disk in 0..random.u32(0..4) {
            disks.push((disk, random.usize(0..6)));
        }
        let vms = Vms::new(&sizes, disks);
        self.caches[random.usize(0..2)].set_vms(vms);
    }

    fn settle(&mut self) {
        for number in 0..4 {
            while self.in_flight(number) > 0 {
                self.reap(number);
            }
            // Read-ahead, too.
            for _ in 0..200 {
                self.reap(number);
            }
        }
    }

    /// Checks everything, block by block, with and without a disk that fails.
    fn check(&mut self) {
        self.settle();
        for number in 0..2 {
            self.sims[number].held.lock().unwrap().fails = false;
            let capacity = self.sims[number].held.lock().unwrap().capacity;
            for start in (0..capacity).step_by(8) {
                let count = 8.min(capacity - start);
                let mut memory = vec![0u64; count as usize * WORDS];
                let mut request = Request::new(Op::Read(extent(start, count)), 0);
                let base: *mut u8 = memory.as_mut_ptr().cast();
                // SAFETY: the memory is there until the request is back.
                request.memory.push(unsafe { IoVec::new(base, count as usize * 512) });
                let queue = &mut self.queues[number];
                queue.channel.submit(request);
                let mut done = Vec::new();
                while done.is_empty() {
                    queue.channel.kick();
                    queue.channel.reap(&mut done);
                }
                assert_eq!(done[0].outcome, Ok(()));
                let held = self.sims[number].held.lock().unwrap();
                let disk = held.now[start as usize..][..count as usize].as_flattened();
                assert!(disk == memory, "sector {start} of {number}");
            }
        }
        for number in 0..4 {
            self.again(number);
        }
        for cache in &self.caches {
            cache.set_target(2 * self.max);
            cache.set_target(MIB);
            assert_eq!(cache.resident_bytes(), cache.bytes(), "a frame is lost");
            assert!(cache.resident_bytes() <= MIB);
        }
    }
}

/// Cuts memory at random, as guests do.
///
/// # Safety
/// It is kept until the request that carries the pieces is back.
unsafe fn in_pieces(base: *mut u8, bytes: usize, random: &mut fastrand::Rng) -> Vec<IoVec> {
    let unit = [512, 512, 1, 8][random.usize(0..4)];
    let cuts = match random.u8(0..10) {
        0 => 1024.min(bytes / unit),
        1..4 => 0,
        _ => random.usize(0..8),
    };
    let cut = (0..cuts).map(|_| random.usize(0..=bytes / unit) * unit);
    let mut cuts: Vec<usize> = cut.collect();
    cuts.sort_unstable();
    cuts.truncate(1000);
    cuts.push(bytes);
    let mut from = 0;
    let piece = |cut| {
        // SAFETY: within the memory.
        let piece = unsafe { IoVec::new(base.add(from), cut - from) };
        from = cut;
        piece
    };
    cuts.into_iter().map(piece).collect()
}

fn seed() -> u64 {
    let seed = std::env::var("CACHE_SEED").ok().and_then(|it| it.parse().ok());
    seed.unwrap_or_else(|| fastrand::u64(..))
}

fn rounds() -> u64 {
    std::env::var("CACHE_ROUNDS").ok().and_then(|it| it.parse().ok()).unwrap_or(1)
}

#[test]
fn queues_of_two_disks_behave_like_the_model() {
    let first = seed();
    for round in 0..rounds() {
        let seed = first.wrapping_add(round);
        for kind in PolicyKind::ALL {
            for (fails, is_nested) in [(true, false), (true, true), (false, false)] {
                println!("CACHE_SEED={seed} CACHE_ROUNDS=1 {kind:?} {fails} {is_nested}");
                let mut world = World::new(kind, seed, fails, is_nested);
                world.run(6000);
                world.check();
                assert!(world.reads > 500 && (!fails || world.errors > 10));
            }
        }
    }
}

/// As above, with batches of up to 99 requests before a kick, and VMs that change.
#[test]
fn batches_of_queues_of_vms_that_change_behave_like_the_model() {
    let first = seed();
    for round in 0..rounds() {
        let seed = first.wrapping_add(round);
        for kind in PolicyKind::ALL {
            for (fails, is_nested) in [(true, false), (true, true), (false, false)] {
                println!("CACHE_SEED={seed} CACHE_ROUNDS=1 {kind:?} {fails} {is_nested}");
                let mut world = World::with_depth(kind, seed, fails, is_nested, DEPTH_OF_BATCHES);
                world.run_in_batches(4000);
                world.check();
                assert!(world.reads > 500 && (!fails || world.errors > 10));
            }
        }
    }
}

/// Makes a guest's queue over a disk that executes requests when it is reaped.
fn one(max: u64, kind: PolicyKind) -> (Arc<Cache>, Arc<Sim>, Box<dyn Channel>) {
    let time = Arc::new(AtomicU64::new(0));
    let sim = Sim::new(&time, SECTORS, 7, false);
    let cache = Arc::new(Cache::new(max, kind).unwrap());
    let cached = Cached::new(Arc::new(SimLayer(Arc::clone(&sim))), Arc::clone(&cache), 0, false);
    let context = QueueContext::alone(QueueDepth(64)).unwrap();
    let context = QueueContext { origin: Origin::Queue { disk: 0, queue: 0 }, ..context };
    let channel = cached.channel(&context).unwrap();
    (cache, sim, channel)
}

/// Regression: if fills were in flight while the cache shrank, its memory stayed above the target
/// for ever.
#[test]
fn memory_of_blocks_on_their_way_is_given_back_by_the_next_call() {
    let (cache, _, mut channel) = one(16 * MIB, PolicyKind::Lru);
    let mut memory = vec![vec![0u8; MIB as usize]; 8];
    for (index, memory) in memory.iter_mut().enumerate() {
        let mut request = Request::new(Op::Read(extent(index as u64 * 2048, 2048)), 0);
        // SAFETY: the memory is there until the request is back.
        request.memory.push(unsafe { IoVec::of(memory) });
        channel.submit(request);
    }
    channel.kick();
    cache.set_target(MIB);
    let mut done = Vec::new();
    while done.len() < 8 {
        channel.reap(&mut done);
    }
    // A guest that continues for a while.
    for round in 0..2000u64 {
        let mut buffer = vec![0u8; 4096];
        let mut request =
            Request::new(Op::Read(extent(round * 8 * 7 % (SECTORS - 8) / 8 * 8, 8)), 0);
        // SAFETY: the memory is there until the request is back.
        request.memory.push(unsafe { IoVec::of(&mut buffer) });
        channel.submit(request);
        channel.kick();
        let mut done = Vec::new();
        while done.is_empty() {
            channel.reap(&mut done);
        }
    }
    // The monitor repeats the target when it sees that.
    cache.set_target(MIB);
    let (held, resident) = (cache.bytes(), cache.resident_bytes());
    assert!(resident <= cache.target_bytes(), "{resident} resident, {held} held, 1 MiB to take");
}

/// Regression: the window of a stream was a quarter of the read-ahead limit at the largest cache
/// size: in a shrunk cache, most of a window displaced the rest of it.
#[test]
fn a_small_cache_reads_ahead_what_it_can_keep() {
    for max in [128 * MIB, MIB] {
        let (cache, sim, mut channel) = one(max, PolicyKind::Lru);
        cache.set_target(MIB);
        let blocks = 1500;
        for block in 0..blocks {
            let mut buffer = vec![0u8; 4096];
            let mut request = Request::new(Op::Read(extent(block * 8, 8)), 0);
            // SAFETY: the memory is there until the request is back.
            request.memory.push(unsafe { IoVec::of(&mut buffer) });
            channel.submit(request);
            let mut done = Vec::new();
            while done.is_empty() {
                channel.kick();
                channel.reap(&mut done);
            }
            // The guest takes its time.
            for _ in 0..20 {
                channel.reap(&mut done);
            }
        }
        let held = sim.held.lock().unwrap();
        let (read, reads) = (held.read_sectors / 8, held.reads);
        assert!(read <= blocks * 3 / 2 && reads < blocks / 2, "{read} of {blocks}, {reads} reads");
    }
}

/// Regression: they shared blocks with the disk of the lower bits.
#[test]
#[should_panic(expected = "assertion failed")]
fn a_disk_whose_number_does_not_fit_is_refused() {
    let time = Arc::new(AtomicU64::new(0));
    let cache = Arc::new(Cache::new(MIB, PolicyKind::Lru).unwrap());
    let sim = Sim::new(&time, SECTORS, 7, false);
    let cached = Cached::new(Arc::new(SimLayer(sim)), cache, 1 | 1 << 24, false);
    let _ = super::Guest::new(&cached).read(0, 8);
}
