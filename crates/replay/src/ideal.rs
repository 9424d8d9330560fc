//! An ideal log under the same writes, to compare the amplification of an image with. It has two
//! lifetimes, guests' writes and copies, chooses victims by cost-benefit, and has nothing but data
//! in its segments: no headers, maps, seals or checkpoints. With uniform writes it agrees with
//! theory.

use serde::Serialize;

/// No place.
const NONE: u32 = u32::MAX;
/// Of the lifetimes.
const GUESTS: usize = 0;
const COPIES: usize = 1;

/// The amplification of an ideal log, for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ideal {
    /// Live share of the segments left to data, without spare, open and map segments.
    pub live_share: f64,
    /// Blocks written per block of the guest by an ideal log with that live share.
    pub waf: f64,
    /// The total WAF per that of the ideal log.
    pub total_to_ideal: Option<f64>,
}

/// A log of blocks.
struct Log {
    /// Blocks of a segment.
    blocks: u32,
    /// Place of each block of the disk: segment x blocks + number in it.
    place_of: Vec<u32>,
    /// Block of the disk at each place, live or dead.
    block_at: Vec<u32>,
    segments: Vec<Segment>,
    free: Vec<u32>,
    /// Open segment of each lifetime, and its blocks so far.
    open: [(u32, u32); 2],
    /// Writes of the guest, and all.
    clock: u64,
    appended: u64,
}

#[derive(Clone, Copy, Default)]
struct Segment {
    live: u32,
    is_closed: bool,
    closed_at: u64,
}

impl Log {
    /// A log with `closed` segments beside the open and the free one.
    fn new(disk_blocks: u32, closed: u32, blocks: u32) -> Self {
        let segments = closed + 3;
        let mut free: Vec<u32> = (0..segments).collect();
        let mut open = || (free.pop().expect("three more than closed"), 0);
        Self {
            open: [open(), open()],
            blocks,
            place_of: vec![NONE; disk_blocks as usize],
            block_at: vec![NONE; segments as usize * blocks as usize],
            segments: vec![Segment::default(); segments as usize],
            free,
            clock: 0,
            appended: 0,
        }
    }

    fn write(&mut self, block: u32) {
        self.clock += 1;
        let place = self.place_of[block as usize];
        if place != NONE {
            self.segments[(place / self.blocks) as usize].live -= 1;
        }
        self.append(block, GUESTS);
        while self.free.is_empty() {
            self.clean();
        }
    }

    fn append(&mut self, block: u32, lifetime: usize) {
        let (segment, used) = self.open[lifetime];
        let place = segment * self.blocks + used;
        self.block_at[place as usize] = block;
        self.place_of[block as usize] = place;
        self.segments[segment as usize].live += 1;
        self.appended += 1;
        self.open[lifetime].1 += 1;
        if used + 1 == self.blocks {
            let closed = &mut self.segments[segment as usize];
            (closed.is_closed, closed.closed_at) = (true, self.clock);
            self.open[lifetime] = (self.free.pop().expect("one is kept free"), 0);
        }
    }

    /// Cleans the victim with the best ratio of benefit to cost. Its own space takes the copies
    /// that do not fit into the open segment: it is free as soon as they have been read.
    fn clean(&mut self) {
        let score = |it: &Segment| {
            let live = f64::from(it.live) / f64::from(self.blocks);
            (1.0 - live) / (1.0 + live) * ((self.clock - it.closed_at).max(1) as f64).sqrt()
        };
        let closed = self.segments.iter().enumerate().filter(|(_, it)| it.is_closed);
        let victim = closed.max_by(|one, other| score(one.1).total_cmp(&score(other.1)));
        let victim = victim.expect("a segment is closed").0 as u32;
        let first = victim * self.blocks;
        let live: Vec<u32> = (first..first + self.blocks)
            .map(|place| (place, self.block_at[place as usize]))
            .filter(|(place, block)| self.place_of[*block as usize] == *place)
            .map(|(_, block)| block)
            .collect();
        self.segments[victim as usize] = Segment::default();
        self.free.push(victim);
        live.into_iter().for_each(|block| self.append(block, COPIES));
    }
}

/// Returns the amplification of an ideal log with `segments` segments of `blocks` blocks beside its
/// open ones: of the writes after the first `warmup`, to a disk that was filled before. `None` if
/// its data leaves nothing to clean.
pub fn amplification(
    writes: impl Iterator<Item = u32>,
    warmup: u64,
    disk_blocks: u32,
    segments: u32,
    blocks: u32,
) -> Option<f64> {
    if u64::from(disk_blocks) + u64::from(blocks) > u64::from(segments) * u64::from(blocks) {
        return None;
    }
    let mut log = Log::new(disk_blocks, segments, blocks);
    (0..disk_blocks).for_each(|block| log.write(block));
    let mut begin = (log.clock, log.appended);
    for (number, block) in (0..).zip(writes) {
        if number == warmup {
            begin = (log.clock, log.appended);
        }
        log.write(block);
    }
    let written = log.clock - begin.0;
    (written > 0).then(|| (log.appended - begin.1) as f64 / written as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_uniform(live_share: f64) -> f64 {
        let (segments, blocks) = (1024, 128);
        let disk = (f64::from(segments * blocks) * live_share) as u32;
        let mut random = fastrand::Rng::with_seed(1);
        let writes = (0..8 * disk).map(|_| random.u32(0..disk));
        amplification(writes, 6 * u64::from(disk), disk, segments, blocks).unwrap()
    }

    /// Of a log with many segments, 1 / (1 - live share of a victim), where greedy cleaning takes
    /// the emptiest ones (Desnoyers, TOS 2014: 2.65 and 1.86 of segments with 128 blocks).
    #[test]
    fn uniform_writes_cost_it_what_theory_says() {
        for (live_share, theory) in [(0.7, 1.86), (0.8, 2.65)] {
            let seen = of_uniform(live_share);
            assert!((seen / theory - 1.0).abs() < 0.02, "{seen} for {theory}");
        }
    }

    #[test]
    fn sequential_writes_are_not_copied() {
        let disk = 1000;
        let writes = (0..5000).map(|number| number % disk);
        assert_eq!(amplification(writes, 0, disk, 20, 64), Some(1.0));
    }

    #[test]
    fn data_that_fills_all_segments_cannot_be_cleaned() {
        assert_eq!(amplification([0].into_iter(), 0, 1000, 10, 100), None);
    }
}
