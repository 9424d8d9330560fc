//! Random histories against an independent oracle, written sector by sector from the rules alone.

use std::collections::BTreeSet;

use fastrand::Rng;

use super::*;
use crate::{Fate, Moment, Schedule};

const SECTORS: u64 = 32;
const BYTES: u64 = SECTORS * 512;

/// An operation as its submitter knows it.
struct Known {
    op: FileOp,
    fill: u8,
    begin: Moment,
    end: Option<Moment>,
}

impl Known {
    /// Returns whether it had completed at a moment.
    fn ended(&self, at: Moment) -> bool {
        self.end.is_some_and(|end| end <= at)
    }

    fn covers(&self, sector: u64) -> bool {
        let (FileOp::Write { offset, bytes, .. }
        | FileOp::Punch { offset, bytes }
        | FileOp::Clear { offset, bytes }
        | FileOp::Zero { offset, bytes }) = self.op
        else {
            return false;
        };
        (offset.get()..offset.get() + bytes).contains(&(sector * 512))
    }

    fn durable(&self, at: Moment, all: &[Known]) -> bool {
        let by_itself = matches!(self.op, FileOp::Write { durable: true, .. });
        let covered =
            |sync: &Known| sync.op == FileOp::Datasync && sync.ended(at) && self.ended(sync.begin);
        self.ended(at) && (by_itself || all.iter().any(covered))
    }
}

/// Runs random operations on three queues. Returns what their user sees of them.
fn history(disk: &SimDisk, random: &mut Rng) -> Vec<Known> {
    let mut known: Vec<Known> = Vec::new();
    let mut queues: Vec<(Queue, Vec<usize>)> =
        (0..3).map(|_| (Queue::new(disk), Vec::new())).collect();
    for n in 0..60 {
        let (queue, numbers) = random.choice(&mut queues).unwrap();
        let from = random.u64(..SECTORS);
        let (at, bytes) = (from * 512, random.u64(1..=(SECTORS - from).min(12)) * 512);
        let (op, fill) = match random.u8(..10) {
            0 => (FileOp::Datasync, 0),
            1 => (punch(at, bytes), 0),
            2 => (zero(at, bytes), 0),
            3 => (durable_write(at, bytes), n + 1),
            _ => (write(at, bytes), n + 1),
        };
        numbers.push(known.len());
        let begin = disk.now();
        queue.submit(op, fill);
        known.push(Known { op, fill, begin, end: None });
        if random.bool() {
            queue.channel.kick();
            let mut done = Vec::new();
            queue.channel.reap(&mut done);
            for completion in done {
                completion.outcome.unwrap();
                known[numbers[completion.tag]].end = Some(disk.now());
            }
        }
    }
    known
}

/// Returns the possible values of a sector after a power cut.
fn allowed(sector: u64, at: Moment, all: &[Known]) -> BTreeSet<u8> {
    let begun = || all.iter().filter(|op| op.covers(sector) && op.begin < at);
    let durable: Vec<&Known> = begun().filter(|op| op.durable(at, all)).collect();
    let replaced = |op: &Known| durable.iter().any(|later| op.ended(later.begin));
    let mut fills: BTreeSet<u8> = begun().filter(|op| !replaced(op)).map(|op| op.fill).collect();
    if durable.is_empty() {
        fills.insert(0);
    }
    fills
}

#[test]
fn no_crash_shows_what_cannot_be_and_every_crash_that_can_be_shows() {
    let (mut open, mut met) = (0, 0);
    for seed in 0..12 {
        let mut random = Rng::with_seed(seed);
        let disk = SimDisk::new(BYTES);
        disk.set_schedule(Schedule::Shuffled { seed });
        let known = history(&disk, &mut random);
        for moment in disk.crash_points().step_by(7) {
            let allowed: Vec<BTreeSet<u8>> =
                (0..SECTORS).map(|sector| allowed(sector, moment, &known)).collect();
            let mut seen = vec![BTreeSet::new(); SECTORS as usize];
            for fate_seed in 0..40 {
                let crashed = disk.crash_at(moment, &mut Fate::seeded(fate_seed)).to_bytes();
                for (n, sector) in crashed.chunks(512).enumerate() {
                    assert!(
                        sector.iter().all(|byte| *byte == sector[0])
                            && allowed[n].contains(&sector[0]),
                        "sector {n} holds {} and may hold {:?}: seeds {seed} and {fate_seed}, \
                         {moment:?}",
                        sector[0],
                        allowed[n],
                    );
                    seen[n].insert(sector[0]);
                }
            }
            open += allowed.iter().map(BTreeSet::len).sum::<usize>();
            met += seen.iter().map(BTreeSet::len).sum::<usize>();
        }
    }
    // Some occur only if operations that ended in the same reap are distinguished.
    assert!(met * 10 > open * 8, "only {met} of {open} possibilities were met");
}

#[test]
fn crashes_do_not_depend_on_those_made_before() {
    let make = || {
        let disk = SimDisk::new(BYTES);
        disk.set_schedule(Schedule::Shuffled { seed: 5 });
        history(&disk, &mut Rng::with_seed(5));
        disk
    };
    let (forward, backward) = (make(), make());
    let image = |disk: &SimDisk, at| {
        let (crashed, killed) = (
            disk.crash_at(at, &mut Fate::seeded(1)).to_bytes(),
            disk.kill_at(at, &mut Fate::seeded(1)).to_bytes(),
        );
        (crashed, killed)
    };
    let there: Vec<_> = forward.crash_points().map(|at| image(&forward, at)).collect();
    let points: Vec<Moment> = backward.crash_points().collect();
    let mut back: Vec<_> = points.iter().rev().map(|at| image(&backward, *at)).collect();
    back.reverse();
    assert!(there == back);
}
