//! A page-mapped flash translation layer: the place of each unit on the drive, and the cost of
//! writes.
//!
//! A unit is programmed into the open erase block of its stream. When erased blocks run out, the
//! collector picks a victim, programs its live units into another open block of that stream, and
//! erases the victim. So older units are separated from new ones; under skewed writes that is worth
//! a fifth. Only two erased blocks are held back. Theory holds back none (Desnoyers, "Analytic
//! Models of SSD Write Performance", TOS 2014), which makes a difference only for drives of few
//! blocks.

use std::collections::VecDeque;

use crate::victims::{Policy, Victims};

/// Erased blocks kept: a write may need a new block, and the collector another one.
const ERASED_KEPT: usize = 2;
/// Labels that data may have, which tell what is copied.
pub const LABELS: usize = 8;
/// No place, or no unit.
const NONE: u32 = u32::MAX;

/// Activity of the flash, in units and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units written by the host.
    pub written: u64,
    /// Units copied by the collector.
    pub copied: u64,
    /// Erased erase blocks.
    pub erased: u64,
    /// Live units trimmed by the host.
    pub trimmed: u64,
    /// The copied units, by [label](Ftl::label).
    pub copied_of: [u64; LABELS],
}

impl Counts {
    /// Returns the activity since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            written: self.written - earlier.written,
            copied: self.copied - earlier.copied,
            erased: self.erased - earlier.erased,
            trimmed: self.trimmed - earlier.trimmed,
            copied_of: since(&self.copied_of, &earlier.copied_of),
        }
    }
}

/// Returns the growth of counters since `earlier`.
pub fn since(now: &[u64; LABELS], earlier: &[u64; LABELS]) -> [u64; LABELS] {
    std::array::from_fn(|label| now[label] - earlier[label])
}

/// The geometry of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Units visible to the host.
    pub units: u32,
    /// Units per erase block.
    pub units_per_block: u32,
    /// Erase blocks; they must have room for `units` beside [`held_blocks`](Self::held_blocks).
    pub blocks: u32,
    /// Streams, each with an open block of its own, and one for copies by the collector.
    pub streams: u8,
    /// Dies, over which the units of a block are spread in turn.
    pub dies: u32,
}

impl Shape {
    /// Returns the blocks that are open, erased, or the victim.
    #[must_use]
    pub fn held_blocks(&self) -> u32 {
        2 * u32::from(self.streams) + ERASED_KEPT as u32 + 1
    }
}

/// Units programmed on a die.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Units written by the host.
    pub written: u32,
    /// Units copied by the collector.
    pub copied: u32,
}

/// A page-mapped flash translation layer.
pub struct Ftl {
    shape: Shape,
    /// Place of each unit: block x units per block + index.
    place_of: Vec<u32>,
    /// Label of each unit.
    labels: Vec<u8>,
    /// Unit at each place, live or dead.
    unit_at: Vec<u32>,
    blocks: Vec<Block>,
    erased: VecDeque<u32>,
    /// Open block of each stream, followed by those of the collector.
    open: Vec<Open>,
    victims: Victims,
    counts: Counts,
    /// Since the last [`take_programs`](Self::take_programs), by die.
    programs: Vec<Programs>,
}

#[derive(Clone, Copy, Default)]
struct Block {
    live: u32,
    erases: u32,
    stream: u8,
}

#[derive(Clone, Copy)]
struct Open {
    block: u32,
    used: u32,
}

impl Ftl {
    /// Makes an empty drive.
    ///
    /// # Panics
    /// If there are too few blocks; see [`Shape::blocks`].
    #[must_use]
    pub fn new(shape: Shape, policy: Policy) -> Self {
        let held = u64::from(shape.held_blocks()) * u64::from(shape.units_per_block);
        let needed = u64::from(shape.units) + held;
        let places = u64::from(shape.blocks) * u64::from(shape.units_per_block);
        assert!(needed <= places && places < u64::from(NONE), "{shape:?} has no room");
        let mut erased: VecDeque<_> = (0..shape.blocks).collect();
        let mut open_next =
            || Open { block: erased.pop_front().expect("a block a stream"), used: 0 };
        let open: Vec<_> = (0..2 * shape.streams).map(|_| open_next()).collect();
        let mut blocks = vec![Block::default(); shape.blocks as usize];
        for (stream, open) in open.iter().enumerate() {
            blocks[open.block as usize].stream = stream as u8 % shape.streams;
        }
        Self {
            place_of: vec![NONE; shape.units as usize],
            labels: vec![0; shape.units as usize],
            unit_at: vec![NONE; places as usize],
            blocks,
            erased,
            open,
            victims: Victims::new(policy, shape.blocks, shape.units_per_block),
            counts: Counts::default(),
            programs: vec![Programs::default(); shape.dies as usize],
            shape,
        }
    }

    /// Returns the activity so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Writes a unit.
    ///
    /// # Panics
    /// If the unit or stream does not exist.
    pub fn write(&mut self, unit: u32, stream: u8) {
        self.kill(unit);
        assert!(stream < self.shape.streams, "no stream {stream}");
        let die = self.program(unit, stream, usize::from(stream));
        self.programs[die].written += 1;
        self.counts.written += 1;
        // A victim whose units are all live takes a block before it frees one.
        while self.erased.len() < ERASED_KEPT {
            self.collect();
        }
    }

    /// Labels a unit: its copies are counted under this number, below [`LABELS`]. Without a label
    /// it is 0.
    pub fn label(&mut self, unit: u32, label: u8) {
        self.labels[unit as usize] = label;
    }

    /// Trims a unit.
    ///
    /// # Panics
    /// If the unit does not exist.
    pub fn trim(&mut self, unit: u32) {
        if self.kill(unit) {
            self.counts.trimmed += 1;
        }
    }

    /// Returns the units programmed on each die since the last call.
    pub fn take_programs(&mut self) -> impl Iterator<Item = Programs> {
        self.programs.iter_mut().map(std::mem::take)
    }

    /// Returns the die of a unit's data; of a unit without data, any.
    #[must_use]
    pub fn die_of(&self, unit: u32) -> usize {
        match self.place_of[unit as usize] {
            NONE => self.die_at(unit),
            place => self.die_at(place % self.shape.units_per_block),
        }
    }

    const fn die_at(&self, index: u32) -> usize {
        (index % self.shape.dies) as usize
    }

    /// Returns the number of erases of each block.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| block.erases)
    }

    /// Marks a unit's data as dead. Returns whether it had any.
    fn kill(&mut self, unit: u32) -> bool {
        let place = std::mem::replace(&mut self.place_of[unit as usize], NONE);
        if place == NONE {
            return false;
        }
        let block = place / self.shape.units_per_block;
        self.blocks[block as usize].live -= 1;
        self.victims.lost_one(block, self.blocks[block as usize].live);
        true
    }

    /// Programs a unit of a stream into an open block. Returns the die.
    fn program(&mut self, unit: u32, stream: u8, open: usize) -> usize {
        let open = &mut self.open[open];
        if open.used == self.shape.units_per_block {
            self.victims.filled(open.block, self.blocks[open.block as usize].live);
            let block = self.erased.pop_front().expect("the collector keeps one");
            self.blocks[block as usize].stream = stream;
            *open = Open { block, used: 0 };
        }
        let (index, place) = (open.used, open.block * self.shape.units_per_block + open.used);
        open.used += 1;
        self.blocks[open.block as usize].live += 1;
        self.unit_at[place as usize] = unit;
        self.place_of[unit as usize] = place;
        self.die_at(index)
    }

    /// Collects one victim.
    fn collect(&mut self) {
        let victim = self.victims.pick().expect("a block that is full");
        let Block { live, stream, .. } = self.blocks[victim as usize];
        let moved = usize::from(self.shape.streams + stream);
        if live > 0 {
            let first = victim * self.shape.units_per_block;
            for place in first..first + self.shape.units_per_block {
                let unit = self.unit_at[place as usize];
                if unit != NONE && self.place_of[unit as usize] == place {
                    self.blocks[victim as usize].live -= 1;
                    let die = self.program(unit, stream, moved);
                    self.programs[die].copied += 1;
                    self.counts.copied += 1;
                    self.counts.copied_of[usize::from(self.labels[unit as usize])] += 1;
                }
            }
        }
        self.blocks[victim as usize].erases += 1;
        self.counts.erased += 1;
        self.erased.push_back(victim);
    }
}
