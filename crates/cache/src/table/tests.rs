//! Three requests for one block, with every interleaving of their steps: the held data must equal
//! the disk's. Everything done under the lock is one step, so there is no other interleaving.

use super::*;
use crate::BLOCK_BYTES;
use crate::policy::PolicyKind;

const BLOCK: BlockId = BlockId::of_disk(1, 7);
/// Initial content of the block, and content of other blocks.
const FIRST: u8 = 1;
const OTHER: u8 = 200;
/// More than the policy uses, and fewer than all requests could need.
const FRAMES: usize = 4;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Read,
    Write,
    /// Fails without effect on the disk.
    WriteLost,
    /// Fails after it has reached the disk.
    WriteDone,
    /// A write of a part of the block.
    WritePart,
    Discard,
    ReadAhead,
    /// Reads other blocks, so that this one is evicted.
    Evict,
}

const KINDS: [Kind; 8] = [
    Kind::Read,
    Kind::Write,
    Kind::WriteLost,
    Kind::WriteDone,
    Kind::WritePart,
    Kind::Discard,
    Kind::ReadAhead,
    Kind::Evict,
];

impl Kind {
    /// It begins, reaches the disk, and ends. A discard may take the lock twice before it is sent
    /// below.
    const fn steps(self) -> usize {
        if matches!(self, Self::Discard) { 4 } else { 3 }
    }
}

struct Host {
    memory: Memory,
    table: Table,
    /// The disk's content of the block.
    disk: u8,
}

/// A request in progress.
struct Actor {
    kind: Kind,
    value: u8,
    fill: Option<Fill>,
    /// A frame being read, and its content when it was pinned.
    pinned: Option<(Frame, u8)>,
    forgetting: Option<Forgetting>,
    /// Whether `forgetting` has something left to do.
    forgets: bool,
}

impl Host {
    fn new(is_held: bool) -> Self {
        let memory = Memory::new(FRAMES).unwrap();
        let table = Table::new(PolicyKind::Lru.build(2, 0.0, 0), FRAMES, 1);
        let mut host = Self { memory, table, disk: FIRST };
        if is_held {
            host.read_through(BLOCK, FIRST);
        }
        host
    }

    /// Performs a whole read.
    fn read_through(&mut self, block: BlockId, value: u8) {
        match self.table.read(&self.memory, block) {
            Found::Held(frame) => self.memory.unpin(frame),
            Found::Fill(fill) => {
                self.fill(&fill, value);
                self.table.end_fill(&self.memory, fill, true);
            }
            Found::Busy | Found::Refused => {}
        }
    }

    fn fill(&self, fill: &Fill, value: u8) {
        // SAFETY: its owner fills it.
        unsafe { self.memory.bytes_mut(fill.frame) }.fill(value);
    }

    fn content(&self, frame: Frame) -> u8 {
        // SAFETY: nothing changes it while this one thread looks.
        let bytes = unsafe { self.memory.bytes(frame) };
        assert!(bytes[0] == bytes[BLOCK_BYTES - 1]);
        bytes[0]
    }

    /// Returns the held content of the block.
    fn held(&mut self) -> Option<u8> {
        let kept = self.table.policy.find(BLOCK).map(|place| *self.table.frame(place));
        let ahead = self.table.ahead.blocks.find(BLOCK);
        let ahead = ahead.map(|(place, _)| self.table.ahead.frames[place.0 as usize]);
        let frames = [kept, ahead].map(|frame| frame.filter(|frame| frame.is_some()));
        assert!(frames[0].is_none() || frames[1].is_none(), "it is held twice");
        frames.into_iter().flatten().next().map(|frame| self.content(frame))
    }
}

impl Actor {
    fn step(&mut self, host: &mut Host, step: usize) {
        let left = self.kind.steps() - step;
        match (self.kind, left) {
            (_, 1) => self.end(host),
            (_, 2) => self.carry_out(host),
            (Kind::Discard, _) => self.forget(host),
            _ => self.begin(host),
        }
    }

    fn forget(&mut self, host: &mut Host) {
        let blocks = BLOCK..BlockId(BLOCK.0 + 1);
        let forgetting = self.forgetting.get_or_insert_with(|| Forgetting::of(blocks));
        if self.forgets {
            self.forgets = forgetting.step(&mut host.table, &host.memory);
        }
    }

    fn begin(&mut self, host: &mut Host) {
        let Host { memory, table, .. } = host;
        let found = match self.kind {
            Kind::Read => table.read(memory, BLOCK),
            Kind::Write | Kind::WriteLost | Kind::WriteDone => {
                table.begin_write(memory, BLOCK, true)
            }
            Kind::WritePart => table.begin_write(memory, BLOCK, false),
            Kind::Discard => unreachable!("it forgets"),
            Kind::ReadAhead => {
                let mut fills = Vec::new();
                table.begin_ahead(memory, BLOCK..BlockId(BLOCK.0 + 1), 0, &mut fills);
                self.fill = fills.pop();
                return;
            }
            Kind::Evict => return host.read_through(BlockId(1), OTHER),
        };
        match found {
            Found::Held(frame) => self.pinned = Some((frame, host.content(frame))),
            Found::Fill(fill) => {
                if self.kind != Kind::Read {
                    host.fill(&fill, self.value);
                }
                self.fill = Some(fill);
            }
            Found::Busy | Found::Refused => {}
        }
    }

    fn carry_out(&mut self, host: &mut Host) {
        match self.kind {
            Kind::Read | Kind::ReadAhead => {
                if let Some(fill) = &self.fill {
                    host.fill(fill, host.disk);
                }
            }
            Kind::Write | Kind::WriteDone | Kind::WritePart => host.disk = self.value,
            Kind::WriteLost => {}
            Kind::Discard => host.disk = 0,
            Kind::Evict => host.read_through(BlockId(2), OTHER),
        }
    }

    fn end(&mut self, host: &mut Host) {
        if let Some((frame, content)) = self.pinned.take() {
            assert_eq!(host.content(frame), content, "a frame was used again while it was read");
            host.memory.unpin(frame);
        }
        if !matches!(self.kind, Kind::Read | Kind::ReadAhead | Kind::Evict) {
            host.table.end_change(BLOCK..BlockId(BLOCK.0 + 1));
        }
        if let Some(fill) = self.fill.take() {
            let succeeded = !matches!(self.kind, Kind::WriteLost | Kind::WriteDone);
            if self.kind == Kind::ReadAhead {
                host.table.end_ahead(&host.memory, fill, succeeded);
            } else {
                host.table.end_fill(&host.memory, fill, succeeded);
            }
        }
        if self.kind == Kind::Evict {
            host.read_through(BlockId(3), OTHER);
        }
    }
}

/// Runs `order`, which names a request for each step, on a block that is held at first or not.
/// Returns whether it is held at the end.
fn run(kinds: [Kind; 3], is_held: bool, order: &[usize]) -> bool {
    let mut host = Host::new(is_held);
    let mut actors = [0, 1, 2].map(|index| Actor {
        kind: kinds[index],
        value: 10 + index as u8,
        fill: None,
        pinned: None,
        forgetting: None,
        forgets: true,
    });
    let mut steps = [0; 3];
    for actor in order {
        actors[*actor].step(&mut host, steps[*actor]);
        steps[*actor] += 1;
        if let Some(held) = host.held() {
            assert_eq!(held, host.disk, "{kinds:?} in the order {order:?}");
        }
    }
    let held = host.held().is_some();
    let frames = host.table.blocks() as usize + host.table.free.len();
    assert_eq!(frames, FRAMES, "a frame is lost by {kinds:?} in the order {order:?}");
    held
}

/// Calls `visit` with every order of the steps of three requests.
fn each_order(left: [usize; 3], order: &mut Vec<usize>, visit: &mut impl FnMut(&[usize])) {
    if left == [0; 3] {
        return visit(order);
    }
    for actor in 0..3 {
        if left[actor] > 0 {
            let mut rest = left;
            rest[actor] -= 1;
            order.push(actor);
            each_order(rest, order, visit);
            order.pop();
        }
    }
}

#[test]
fn what_is_held_is_what_the_disk_holds_in_every_order_of_three_requests() {
    let (mut orders, mut held) = (0, 0);
    for (at, first) in KINDS.into_iter().enumerate() {
        for (at, second) in KINDS.into_iter().enumerate().skip(at) {
            for third in KINDS.into_iter().skip(at) {
                let kinds = [first, second, third];
                each_order(kinds.map(Kind::steps), &mut Vec::new(), &mut |order| {
                    let is_held = [true, false];
                    // A block that is not held need not be evicted.
                    let count = if kinds.contains(&Kind::Evict) { 1 } else { 2 };
                    for is_held in &is_held[..count] {
                        orders += 1;
                        held += u32::from(run(kinds, *is_held, order));
                    }
                });
            }
        }
    }
    println!("{orders} orders; the block is held at the end of {held}");
    assert!(held > orders / 20);
}

#[test]
fn a_large_range_is_forgotten_and_others_stay() {
    let memory = Memory::new(64).unwrap();
    let mut table = Table::new(PolicyKind::Lru.build(60, 0.0, 0), 64, 4);
    let other_disk = BlockId::of_disk(2, 300);
    let numbers = [0, 63, 64, 100, 5000, 1 << 30].map(|number| BlockId::of_disk(1, number));
    for block in numbers.into_iter().chain([other_disk]) {
        if let Found::Fill(fill) = table.read(&memory, block) {
            table.end_fill(&memory, fill, true);
        }
    }
    assert_eq!((table.disk(1).blocks, table.disk(2).blocks), (6, 1));
    let range = BlockId::of_disk(1, 63)..BlockId::of_disk(1, 1 << 20);
    table.begin_change(range.clone());
    assert_eq!(table.forget_some(&memory, range.clone()), None);
    assert_eq!((table.disk(1).blocks, table.disk(2).blocks), (2, 1));
    // Nothing is filled while such a large change is in flight; everything is afterwards.
    assert!(matches!(table.read(&memory, BlockId::of_disk(1, 400)), Found::Busy));
    assert!(matches!(table.read(&memory, BlockId::of_disk(2, 400)), Found::Fill(_)), "of others");
    table.end_change(range);
    assert!(matches!(table.read(&memory, BlockId::of_disk(1, 400)), Found::Fill(_)));
}

/// A mutant zeroed a frame that was being read, since a shrink took it for an idle one; no test
/// failed.
#[test]
fn a_frame_that_is_read_survives_a_shrink() {
    let mut host = Host::new(true);
    let Found::Held(frame) = host.table.read(&host.memory, BLOCK) else { panic!("it is held") };
    host.read_through(BlockId(1), OTHER);
    host.read_through(BlockId(2), OTHER);
    assert_eq!(host.held(), None);
    let target = Target { blocks: 1, ahead: 0, frames: 1 };
    let (mut idle, _) = host.table.shrink(&host.memory, target);
    host.memory.give_back(&mut idle);
    host.table.returned(&idle);
    assert_eq!((host.content(frame), host.table.resident()), (FIRST, 2));
    host.memory.unpin(frame);
    let (mut idle, _) = host.table.shrink(&host.memory, target);
    host.memory.give_back(&mut idle);
    host.table.returned(&idle);
    assert_eq!((idle.len(), host.table.resident(), host.table.blocks()), (1, 1, 1));
}

/// Neither over many held blocks at a time, nor over more of them than are read.
#[test]
fn a_range_is_read_ahead_over_short_gaps() {
    // Letters are held; the range ends before the bar.
    for (gap, blocks, expected) in [
        (2, "..h..hh...", "..h..hh...|"),
        (2, "...hhh.", "...|"),
        (2, ".hh..", ".|"),
        (2, "..hh.hh..", "..hh.|"),
        (0, "h..h..", "h..|"),
    ] {
        let memory = Memory::new(64).unwrap();
        let mut table = Table::new(PolicyKind::Lru.build(40, 0.0, 0), 64, 8);
        let id = |index: usize| BlockId::of_disk(1, index as u64);
        for (index, _) in blocks.match_indices('h') {
            if let Found::Fill(fill) = table.read(&memory, id(index)) {
                table.end_fill(&memory, fill, true);
            }
        }
        let mut fills = Vec::new();
        table.begin_ahead(&memory, id(0)..id(blocks.len()), gap, &mut fills);
        let end = fills.last().unwrap().block.0 - id(0).0 + 1;
        assert_eq!(format!("{}|", &blocks[..end as usize]), expected);
        let found = blocks[..end as usize].matches('.').count();
        assert_eq!(fills.len(), found, "{blocks}");
    }
}
