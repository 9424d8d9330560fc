//! A page-mapped flash translation layer: where each unit of the drive is, and what that costs.
//!
//! A unit is programmed into the erase block that its stream has open. When erased blocks run out,
//! the collector picks a victim, programs what is live of it into another block that it has open
//! for that stream, and erases the victim. So what has lived longer does not lie beside what is
//! new; under skewed writes that is worth a fifth. Two erased blocks are all that is held back from
//! use. Theory has none (Desnoyers, "Analytic Models of SSD Write Performance", TOS 2014), which
//! makes a difference for drives of few blocks only.

use std::collections::VecDeque;

use crate::victims::{Policy, Victims};

/// A write may need a new block, and the collector another one.
const ERASED_KEPT: usize = 2;
/// No place, or no unit.
const NONE: u32 = u32::MAX;

/// What has happened to the flash, in units and blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Units that the host has written.
    pub written: u64,
    /// Units that the collector has moved.
    pub copied: u64,
    /// Erase blocks that were erased.
    pub erased: u64,
    /// Live units that the host has trimmed.
    pub trimmed: u64,
}

impl Counts {
    /// Units programmed for each one written; 1 before anything is written.
    #[must_use]
    pub fn amplification(&self) -> f64 {
        if self.written == 0 {
            1.0
        } else {
            (self.written + self.copied) as f64 / self.written as f64
        }
    }

    /// What has happened since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            written: self.written - earlier.written,
            copied: self.copied - earlier.copied,
            erased: self.erased - earlier.erased,
            trimmed: self.trimmed - earlier.trimmed,
        }
    }
}

/// The shape of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Units that the host sees.
    pub units: u32,
    /// Units of an erase block.
    pub units_per_block: u32,
    /// Erase blocks; `units` must find room in them beside [`held_blocks`](Self::held_blocks).
    pub blocks: u32,
    /// Streams, each with an open block of its own, and one for what the collector moves.
    pub streams: u8,
}

impl Shape {
    /// Blocks that are open, erased, or the victim.
    #[must_use]
    pub fn held_blocks(&self) -> u32 {
        2 * u32::from(self.streams) + ERASED_KEPT as u32 + 1
    }
}

/// See the module.
pub struct Ftl {
    shape: Shape,
    /// Where each unit is: block x units per block + place.
    place_of: Vec<u32>,
    /// What is at each place, live or not.
    unit_at: Vec<u32>,
    blocks: Vec<Block>,
    erased: VecDeque<u32>,
    /// The open block of each stream, and behind those the collector's.
    open: Vec<Open>,
    victims: Victims,
    counts: Counts,
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
    /// An empty drive.
    ///
    /// # Panics
    /// If the blocks are too few; see [`Shape::blocks`].
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
            unit_at: vec![NONE; places as usize],
            blocks,
            erased,
            open,
            victims: Victims::new(policy, shape.blocks, shape.units_per_block),
            counts: Counts::default(),
            shape,
        }
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The host writes a unit.
    ///
    /// # Panics
    /// If there is no such unit or stream.
    pub fn write(&mut self, unit: u32, stream: u8) {
        self.kill(unit);
        assert!(stream < self.shape.streams, "no stream {stream}");
        self.program(unit, stream, usize::from(stream));
        self.counts.written += 1;
        // One that is all live needs a block before it gives one.
        while self.erased.len() < ERASED_KEPT {
            self.collect();
        }
    }

    /// The host no longer needs a unit.
    ///
    /// # Panics
    /// If there is no such unit.
    pub fn trim(&mut self, unit: u32) {
        if self.kill(unit) {
            self.counts.trimmed += 1;
        }
    }

    /// Whether a unit holds anything.
    #[must_use]
    pub fn is_live(&self, unit: u32) -> bool {
        self.place_of[unit as usize] != NONE
    }

    /// How often each block was erased.
    pub fn erases(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().map(|block| block.erases)
    }

    /// What a unit had is dead. Returns whether it had anything.
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

    /// Programs a unit of a stream into an open block.
    fn program(&mut self, unit: u32, stream: u8, open: usize) {
        let open = &mut self.open[open];
        if open.used == self.shape.units_per_block {
            self.victims.filled(open.block, self.blocks[open.block as usize].live);
            let block = self.erased.pop_front().expect("the collector keeps one");
            self.blocks[block as usize].stream = stream;
            *open = Open { block, used: 0 };
        }
        let place = open.block * self.shape.units_per_block + open.used;
        open.used += 1;
        self.blocks[open.block as usize].live += 1;
        self.unit_at[place as usize] = unit;
        self.place_of[unit as usize] = place;
    }

    /// Makes one erased block of a victim.
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
                    self.program(unit, stream, moved);
                    self.counts.copied += 1;
                }
            }
        }
        self.blocks[victim as usize].erases += 1;
        self.counts.erased += 1;
        self.erased.push_back(victim);
    }
}
