//! History of a guest's changes, and the content that a disk may hold after a power cut.
//!
//! Each sector of a write carries the number of the write and the number of the sector, so that
//! misplaced data is detected.

use flowstone_block::Op;
use flowstone_sim::{Moment, SimDisk};

const SECTOR: usize = 512;

/// Returns the content of the sectors of one write.
pub fn stamped(first: u64, count: u64, stamp: u32) -> Vec<u8> {
    (first..first + count).flat_map(|sector| pattern(sector, stamp)).collect()
}

fn pattern(sector: u64, stamp: u32) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if stamp != 0 {
        for part in bytes.chunks_exact_mut(8) {
            part[..4].copy_from_slice(&stamp.to_le_bytes());
            part[4..].copy_from_slice(&(sector as u32).to_le_bytes());
        }
    }
    bytes
}

/// Returns the number of the write that each sector comes from; 0 for none.
pub fn stamps_of(contents: &[u8]) -> Vec<u32> {
    contents
        .chunks_exact(SECTOR)
        .enumerate()
        .map(|(sector, bytes)| {
            let stamp = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            assert!(
                bytes == pattern(sector as u64, stamp),
                "sector {sector} holds {:x?}",
                &bytes[..16]
            );
            stamp
        })
        .collect()
}

/// A change of one sector.
#[derive(Clone, Copy, Debug)]
struct Change {
    stamp: u32,
    submitted: Moment,
    /// Number of the completion event; `None` while in flight.
    completed: Option<u64>,
    /// When it became durable on its own.
    durable_at: Option<Moment>,
}

/// The history.
#[derive(Default)]
pub struct HistoryModel {
    events: u64,
    sectors: Vec<Vec<Change>>,
    /// Flushes: number of the submission event, and when they completed.
    flushes: Vec<(u64, Moment)>,
}

/// A request of the history that is in flight.
pub struct Open {
    op: Op,
    stamp: u32,
    event: u64,
    durable: bool,
}

impl HistoryModel {
    /// Starts with a disk that holds these stamps.
    pub fn new(start: &[u32], disk: &SimDisk) -> Self {
        // From the first moment of the disk on.
        let (submitted, completed) = (disk.crash_points().next().unwrap(), Some(0));
        let change = |stamp: &u32| Change {
            stamp: *stamp,
            submitted,
            completed,
            durable_at: Some(submitted),
        };
        let sectors = start.iter().map(|stamp| vec![change(stamp)]).collect();
        Self { events: 1, sectors, flushes: Vec::new() }
    }

    fn tick(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub fn submit(&mut self, disk: &SimDisk, op: Op, stamp: u32, durable: bool) -> Open {
        let event = self.tick();
        let submitted = disk.now();
        for sector in sectors_of(op) {
            let change = Change { stamp, submitted, completed: None, durable_at: None };
            self.sectors[sector].push(change);
        }
        Open { op, stamp, event, durable }
    }

    pub fn complete(&mut self, disk: &SimDisk, open: &Open) {
        let event = self.tick();
        if open.op == Op::Flush {
            self.flushes.push((open.event, disk.now()));
        }
        for sector in sectors_of(open.op) {
            let mut changes = self.sectors[sector].iter_mut().rev();
            let found =
                changes.find(|change| change.stamp == open.stamp && change.completed.is_none());
            let change = found.unwrap();
            change.completed = Some(event);
            change.durable_at = open.durable.then(|| disk.now());
        }
    }

    /// Returns the content of the disk if nothing goes wrong.
    pub fn latest(&self) -> Vec<u32> {
        self.sectors.iter().map(|changes| changes.last().unwrap().stamp).collect()
    }

    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Asserts that a disk may hold this content after a power cut at `moment`.
    pub fn judge(&self, found: &[u32], moment: Moment) {
        let served = self.flushes.iter().filter(|(_, done)| *done <= moment);
        let flushed = served.map(|(event, _)| *event).max().unwrap_or(0);
        self.judge_since(found, moment, flushed);
    }

    /// Asserts that a disk may hold this content at `moment` if all changes completed before an
    /// event are safe.
    pub fn judge_since(&self, found: &[u32], moment: Moment, flushed: u64) {
        for (sector, changes) in self.sectors.iter().enumerate() {
            let is_safe = |change: &Change| {
                change.completed.is_some_and(|event| event < flushed)
                    || change.durable_at.is_some_and(|done| done <= moment)
            };
            let base = changes.iter().rposition(is_safe).unwrap();
            let mut allowed = changes[base..].iter().filter(|change| change.submitted <= moment);
            assert!(
                allowed.any(|change| change.stamp == found[sector]),
                "sector {sector} is from {}, of {:?}, at {moment:?}",
                found[sector],
                &changes[base..],
            );
        }
    }
}

fn sectors_of(op: Op) -> std::ops::Range<usize> {
    match op {
        Op::Write(extent) | Op::Discard(extent) | Op::WriteZeroes { extent, .. } => {
            extent.start().get() as usize..extent.end().get() as usize
        }
        Op::Read(_) | Op::Flush => 0..0,
    }
}
