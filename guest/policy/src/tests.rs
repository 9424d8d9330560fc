//! Invariants of every policy, the paper's rule step by step, and the history.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::simulator::{self, Line};
use crate::{Access, FileId, History, Link, Multicache, Policy, PolicyKind, Record, Use, Windows};

const BUDGET: u64 = 1000;

fn access(file: u64, usage: Use, bytes: u64, uses: u32) -> Access {
    Access { file: FileId(file), usage, bytes, uses }
}

#[derive(Clone, Debug)]
enum Step {
    Used(u64, Use, u64),
    Forget(u64),
    Budget(u64),
    Epoch,
}

fn step() -> impl Strategy<Value = Step> {
    let usage = prop_oneof![3 => Just(Use::Read), 1 => Just(Use::Write)];
    prop_oneof![
        20 => (0..30_u64, usage, 0..300_u64).prop_map(|(file, usage, bytes)| Step::Used(file, usage, bytes)),
        1 => (0..30_u64).prop_map(Step::Forget),
        1 => (0..2 * BUDGET).prop_map(Step::Budget),
        2 => Just(Step::Epoch),
    ]
}

/// Drops files as a cache would, and fails if one is not held.
fn carry_out(
    drops: &mut Vec<FileId>,
    held: &mut HashMap<FileId, u64>,
) -> Result<(), TestCaseError> {
    for file in drops.drain(..) {
        prop_assert!(held.remove(&file).is_some(), "{file:?} is dropped and not held");
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_held_is_what_was_kept_and_never_above_the_budget(
        steps in prop::collection::vec(step(), 1..400)
    ) {
        for kind in PolicyKind::ALL {
            let mut policy = kind.build(BUDGET, Link::default());
            let mut history = History::new(64);
            let (mut held, mut drops) = (HashMap::new(), Vec::new());
            let mut budget = BUDGET;
            for step in &steps {
                match *step {
                    Step::Used(file, usage, bytes) => {
                        let uses = history.used(FileId(file), bytes);
                        let keep = policy.used(&access(file, usage, bytes, uses), &mut drops);
                        carry_out(&mut drops, &mut held)?;
                        if keep {
                            held.insert(FileId(file), bytes);
                        } else {
                            prop_assert!(!held.contains_key(&FileId(file)), "{kind:?}: passed and held");
                        }
                    }
                    Step::Forget(file) => {
                        policy.forget(FileId(file));
                        held.remove(&FileId(file));
                    }
                    Step::Budget(bytes) => {
                        budget = bytes;
                        policy.set_budget(bytes, &mut drops);
                    }
                    Step::Epoch => policy.epoch(&mut drops),
                }
                carry_out(&mut drops, &mut held)?;
                prop_assert_eq!(policy.held_bytes(), held.values().sum::<u64>(), "{:?}", kind);
                prop_assert!(policy.held_bytes() <= budget, "{:?}", kind);
                for file in (0..30).map(FileId) {
                    prop_assert_eq!(policy.holds(file), held.contains_key(&file), "{:?} {:?}", kind, file);
                }
            }
        }
    }

    #[test]
    fn a_history_counts_each_use_while_files_fit(uses in prop::collection::vec(0..16_u64, 1..200)) {
        let mut history = History::new(4096);
        let mut counts = HashMap::new();
        for file in uses {
            let count = counts.entry(file).or_insert(0);
            *count += 1;
            prop_assert_eq!(history.used(FileId(file), 10), *count);
        }
    }
}

/// S5.2: below the threshold a file is not held; from it on it is.
#[test]
fn multicache_holds_files_from_the_usage_threshold_on() {
    let mut policy = Multicache::new(BUDGET);
    let mut drops = Vec::new();
    assert!(!policy.used(&access(1, Use::Read, 100, 1), &mut drops));
    assert!(policy.used(&access(1, Use::Read, 100, 2), &mut drops));
    assert!(drops.is_empty() && policy.held_bytes() == 100);
}

/// S5.3: D is dropped, which writes it back, before B is dropped, oldest first, and no more than is
/// needed.
#[test]
fn multicache_drops_dirty_candidates_before_clean_ones() {
    let windows = Windows { read_part: 0.3, write_part: 0.1, ..Windows::default() };
    let mut policy = Multicache::with_windows(BUDGET, windows);
    let mut drops = Vec::new();
    for (file, usage) in
        [(1, Use::Read), (2, Use::Read), (3, Use::Write), (4, Use::Write), (5, Use::Read)]
    {
        assert!(policy.used(&access(file, usage, 190, 2), &mut drops));
    }
    assert!(drops.is_empty());
    policy.epoch(&mut drops);
    assert_eq!(drops, [FileId(3)]);
    drops.clear();
    policy.epoch(&mut drops);
    assert!(drops.is_empty(), "760 of 1000 are below the threshold");

    let mut tight = Multicache::with_windows(BUDGET, Windows { mem_threshold: 0.3, ..windows });
    for (file, usage) in [(1, Use::Read), (2, Use::Read), (3, Use::Write), (5, Use::Read)] {
        tight.used(&access(file, usage, 190, 2), &mut drops);
    }
    drops.clear();
    tight.epoch(&mut drops);
    let wanted = [FileId(3), FileId(1), FileId(2)];
    assert_eq!(drops, wanted, "windows A and C stay: 190 bytes are below A's 300");
}

/// A dirty file stays in the write map when it is read: it goes before a clean one.
#[test]
fn multicache_takes_a_file_for_dirty_that_was_read_after_it_was_written() {
    let mut policy = Multicache::new(BUDGET);
    let mut drops = Vec::new();
    policy.used(&access(1, Use::Read, 400, 2), &mut drops);
    policy.used(&access(2, Use::Write, 400, 2), &mut drops);
    policy.used(&access(2, Use::Read, 400, 3), &mut drops);
    policy.set_budget(500, &mut drops);
    assert_eq!(drops, [FileId(2)]);
}

#[test]
fn a_history_is_bounded_and_what_is_used_often_stays() {
    let mut history = History::new(64);
    (0..50).for_each(|_| {
        history.used(FileId(7), 10);
    });
    (1000..1100).for_each(|file| {
        history.used(FileId(file), 10);
    });
    assert!(history.records().count() <= 64);
    assert_eq!(history.used(FileId(7), 10), 51);
    history.forget(FileId(7));
    assert_eq!(history.used(FileId(7), 10), 1);
}

/// S5.4: the file with the most time saved per byte is fetched first; files that do not fit are
/// left out.
#[test]
fn prefetch_takes_the_files_with_the_most_to_gain() {
    let mut history = History::new(64);
    let records = [(1, 500, 9), (2, 500, 2), (3, 100, 9), (4, 100, 1), (5, 600, 8)];
    for (file, bytes, uses) in records {
        history.restore(Record { file: FileId(file), bytes, uses });
    }
    let files = history.prefetch(1000, 2, Link::default());
    assert_eq!(
        files,
        [FileId(3), FileId(1)],
        "the one used once is too new, the others do not fit"
    );
}

#[test]
fn a_trace_is_read_and_a_wrong_line_is_named() {
    let trace = simulator::parse("r,/home/a,b,4096\nw,7,10\n\nr,/home/a,b,4096\n").unwrap();
    let line = |usage, file, bytes| Line { usage, file: FileId(file), bytes };
    let wanted = [line(Use::Read, 0, 4096), line(Use::Write, 1, 10), line(Use::Read, 0, 4096)];
    assert_eq!(trace, wanted);
    for wrong in ["r", "r,a", "x,a,1", "r,a,-1", "r,a,"] {
        let error = simulator::parse(&format!("r,a,1\n{wrong}")).unwrap_err();
        assert!(error.starts_with("line 2: ") && error.contains("want r|w,FILE,BYTES"), "{error}");
    }
}

#[test]
fn the_simulator_counts_hits_of_reads_alone() {
    let trace = simulator::parse("r,a,100\nw,a,100\nr,a,100\nr,b,5000\n").unwrap();
    let link = Link { round_trip_s: 1.0, bytes_per_s: 100.0 };
    let outcome = simulator::run(&mut *PolicyKind::Lru.build(BUDGET, link), &trace, link);
    assert_eq!((outcome.requests, outcome.hits, outcome.hit_bytes), (4, 1, 100));
    assert_eq!((outcome.read_bytes, outcome.saved_seconds, outcome.all_seconds), (5100, 2.0, 55.0));
}
