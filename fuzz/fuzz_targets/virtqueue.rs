//! A ring and guest memory made by the fuzzer: whatever is in them, every request taken is
//! answered once, nothing loops, nothing is touched outside the memory, and what the queue asks of
//! the disk and of the host's memory is bounded. A queue may die with requests in flight; the next
//! one takes over.
#![no_main]

#[path = "../counting.rs"]
mod counting;

use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use flowstone_block::{
    FrontHalf, GuestQueue, Layer, QueueContext, QueueDepth, Request, SectorCount,
};
use flowstone_frontend::vhost_user::VirtQueue;
use flowstone_frontend::vhost_user::fuzzing::{DISK, REQUEST_BYTES_MAX, log_for, queue_over};
use flowstone_layers::{Mem, Null};
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};

/// Ring, headers and data are in the first part; large buffers reach into the rest.
const MEMORY_BYTES: u64 = 8 << 20;
const HEADERS_AT: u64 = 32 << 10;
const ROUNDS: usize = 4;
const LIVES: usize = 4;

/// Of a disk that moves no data, so that requests can be large.
const LARGE_DISK: SectorCount = SectorCount::new(1 << 31);
/// Pieces of memory, and bytes, that a queue may have in flight (`WEIGHT_MAX` and one request).
const PIECES_MAX: usize = (1 << 17) + 2048;
const BYTES_MAX: u64 = (1 << 29) + REQUEST_BYTES_MAX;
/// Memory of the host that a queue of 128 may hold, whatever its requests are.
const HELD_MAX: usize = 8 << 20;

/// Mostly a plausible ring, so that the fuzzer gets past the first check; then anything.
#[derive(Arbitrary, Debug)]
struct Input {
    size_log2: u8,
    event_idx: bool,
    large: bool,
    /// Lives that end with all their requests in flight.
    deaths: u8,
    headers: Vec<Header>,
    descriptors: Vec<Descriptor>,
    heads: Vec<u8>,
    avail_index_error: u8,
    patches: Vec<(u16, Vec<u8>)>,
}

#[derive(Arbitrary, Debug)]
struct Header {
    kind: u8,
    sector: u16,
    second_sector: u64,
}

#[derive(Arbitrary, Debug)]
struct Descriptor {
    place: Place,
    bytes: u16,
    /// Makes a buffer large: it is this often as long, doubled.
    scale: u8,
    flags: u8,
    next: u8,
}

#[derive(Arbitrary, Debug)]
enum Place {
    Header(u8),
    Memory(u16),
    Table(u8),
    Anywhere(u64),
}

impl Input {
    fn write_to(&self, memory: &File, size: u16) {
        let put = |at: u64, bytes: &[u8]| {
            let room = MEMORY_BYTES.saturating_sub(at) as usize;
            memory.write_all_at(&bytes[..bytes.len().min(room)], at).expect("it fits");
        };
        for (index, header) in self.headers.iter().take(64).enumerate() {
            let mut bytes = [0; 32];
            bytes[0] = header.kind % 16;
            bytes[8..10].copy_from_slice(&header.sector.to_le_bytes());
            bytes[16..24].copy_from_slice(&header.second_sector.to_le_bytes());
            put(HEADERS_AT + 32 * index as u64, &bytes);
        }
        for (index, descriptor) in self.descriptors.iter().take(128).enumerate() {
            put(16 * index as u64, &descriptor.encode());
        }
        let avail = 16 * u64::from(size);
        let count = self.heads.len().min(usize::from(size)) as u16;
        let index = count.wrapping_add(u16::from(self.avail_index_error));
        put(avail + 2, &index.to_le_bytes());
        for (index, head) in self.heads.iter().take(usize::from(count)).enumerate() {
            put(avail + 4 + 2 * index as u64, &u16::from(*head).to_le_bytes());
        }
        for (at, bytes) in &self.patches {
            put(u64::from(*at), bytes);
        }
    }
}

impl Descriptor {
    fn encode(&self) -> [u8; 16] {
        let address = match self.place {
            Place::Header(index) => HEADERS_AT + 32 * u64::from(index % 64),
            Place::Memory(at) => u64::from(at),
            Place::Table(index) => 16 * u64::from(index),
            Place::Anywhere(at) => at,
        };
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&address.to_le_bytes());
        let length = u32::from(self.bytes) << (self.scale % 8);
        bytes[8..12].copy_from_slice(&length.to_le_bytes());
        bytes[12] = self.flags & 7;
        bytes[14] = self.next;
        bytes
    }
}

/// What a queue asks of the disk in one go.
#[derive(Default)]
struct Load {
    pieces: usize,
    bytes: u64,
}

impl Load {
    fn add(&mut self, request: &Request) {
        assert!(request.op.bytes() <= REQUEST_BYTES_MAX || request.memory.is_empty());
        self.pieces += request.memory.len();
        self.bytes += if request.memory.is_empty() { 0 } else { request.op.bytes() };
        assert!(self.pieces <= PIECES_MAX && self.bytes <= BYTES_MAX, "too much in flight");
    }
}

/// Carries out everything that comes; `false` if it is to die with all of it in flight.
fn live(queue: &mut VirtQueue, disk: &dyn Layer, size: u16, dies: bool) {
    let context = QueueContext::alone(QueueDepth(size)).expect("a reactor");
    let mut channel = disk.channel(&context).expect("a channel");
    let mut done = Vec::new();
    for _ in 0..ROUNDS {
        let mut load = Load::default();
        let taken = queue.take(
            usize::MAX,
            || true,
            |request| {
                load.add(&request);
                channel.submit(request);
            },
        );
        assert!(taken.chains <= 2 * usize::from(size), "took more than replay and ring have");
        if dies {
            return;
        }
        channel.reap(&mut done);
        while let Some(completion) = done.pop() {
            queue.complete(completion);
        }
        queue.publish();
        assert_eq!(queue.front().in_flight(), 0);
        if queue.front().ask_for_kicks() {
            queue.front().refuse_kicks();
        }
    }
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.size_log2 % 8);
    let file = File::from(memfd_create("fuzz", MemfdFlags::CLOEXEC).expect("a memfd"));
    file.set_len(MEMORY_BYTES).expect("a small memfd grows");
    input.write_to(&file, size);
    let small = Mem::new(DISK).expect("a small disk");
    let large = Null::new(LARGE_DISK);
    let (disk, capacity): (&dyn Layer, _) =
        if input.large { (&large, LARGE_DISK) } else { (&small, DISK) };
    let log = log_for(size).expect("a log");
    let held = counting::Watch::start();
    for life in 0..LIVES {
        let kick = File::from(eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"));
        let memory = file.try_clone().expect("a duplicate");
        let mut queue =
            queue_over(memory, MEMORY_BYTES, size, input.event_idx, kick, capacity, &log)
                .expect("a ring");
        let dies = life < usize::from(input.deaths) % LIVES;
        live(&mut queue, disk, size, dies);
        if !dies {
            break;
        }
    }
    assert!(held.peak_bytes() <= HELD_MAX, "{} bytes held", held.peak_bytes());
    assert!(held.live_bytes() <= 64 << 10, "{} bytes kept", held.live_bytes());
});
