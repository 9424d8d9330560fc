//! Theory of page-mapped drives, and invariants.

use flowstone_ssd::{Counts, Ftl, Policy, Shape};

const BLOCKS: u32 = 4096;
/// What the tests below do not vary; the sizes are placeholders.
const SHAPE: Shape = Shape { units: 0, units_per_block: 0, blocks: 0, streams: 1, dies: 1 };

/// Makes a drive whose physical space is `1 + provisioning` times the visible one.
fn drive(units_per_block: u32, provisioning: f64, policy: Policy) -> (Ftl, Shape) {
    let units = (f64::from(BLOCKS * units_per_block) / (1.0 + provisioning)) as u32;
    let shape = Shape { units, units_per_block, blocks: BLOCKS, ..SHAPE };
    (Ftl::new(shape, policy), shape)
}

/// Returns the activity of `measured` times `units` random writes to the first units, after
/// `warm_up` times as many.
fn steady(ftl: &mut Ftl, units: u32, warm_up: u32, measured: u32) -> Counts {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..units).for_each(|unit| ftl.write(unit, 0));
    (0..u64::from(warm_up) * u64::from(units)).for_each(|_| ftl.write(rng.u32(0..units), 0));
    let before = ftl.counts();
    (0..u64::from(measured) * u64::from(units)).for_each(|_| ftl.write(rng.u32(0..units), 0));
    ftl.counts().since(&before)
}

/// Returns the units programmed per unit written.
fn amplification(counts: Counts) -> f64 {
    (counts.written + counts.copied) as f64 / counts.written as f64
}

/// The principal branch of Lambert's W, by Newton's method.
fn lambert(x: f64) -> f64 {
    let mut w = if x < -0.3 { -1.0 + (2.0 * (1.0 + std::f64::consts::E * x)).sqrt() } else { x };
    for _ in 0..100 {
        w -= (w * w.exp() - x) / (w.exp() * (1.0 + w));
    }
    w
}

/// Amplification of the greedy collector for uniform writes (Desnoyers, TOS 2014).
fn greedy(units_per_block: f64, alpha: f64) -> f64 {
    let x = 1.0 + 1.0 / (2.0 * units_per_block);
    let live = 0.5 - units_per_block / alpha * lambert(-x * alpha * (-x * alpha).exp());
    units_per_block / (units_per_block - (live - 1.0))
}

/// The same for the collector that takes blocks in the order in which they were filled.
fn fifo(alpha: f64) -> f64 {
    alpha / (alpha + lambert(-alpha * (-alpha).exp()))
}

fn assert_near(what: &str, seen: f64, expected: f64, within: f64) {
    println!("{what}: {seen:.3}, theory {expected:.3}");
    assert!((seen / expected - 1.0).abs() <= within, "{what}: {seen} for {expected}");
}

/// Data of a label that is never written again is copied, and counted as such.
#[test]
fn copies_are_counted_by_label() {
    let (mut ftl, shape) = drive(32, 0.2, Policy::Greedy);
    (0..shape.units).step_by(2).for_each(|unit| ftl.label(unit, 3));
    let mut rng = fastrand::Rng::with_seed(1);
    (0..shape.units).for_each(|unit| ftl.write(unit, 0));
    (0..4 * shape.units).for_each(|_| ftl.write(rng.u32(0..shape.units / 2) * 2 + 1, 0));
    let Counts { copied, copied_of, .. } = ftl.counts();
    assert_eq!(copied_of.iter().sum::<u64>(), copied);
    assert!(copied_of[3] > 0 && copied_of[0] > 0 && copied_of[1] == 0, "{copied_of:?}");
}

#[test]
fn the_formulas_give_the_values_that_are_known() {
    assert_near("greedy, 128 units, 7 %", greedy(128.0, 1.07), 7.386, 0.001);
    assert_near("greedy, 64 units, 28 %", greedy(64.0, 1.28), 2.402, 0.001);
    assert_near("fifo, 15 %", fifo(1.15), 4.016, 0.001);
}

#[test]
fn uniform_writes_cost_a_greedy_drive_what_theory_says() {
    for units_per_block in [64, 128] {
        for percent in [7, 15, 28] {
            let provisioning = f64::from(percent) / 100.0;
            let (mut ftl, shape) = drive(units_per_block, provisioning, Policy::Greedy);
            let counts = steady(&mut ftl, shape.units, 6, 2);
            let expected = greedy(f64::from(units_per_block), 1.0 + provisioning);
            let what = format!("greedy, {units_per_block} units, {percent} %");
            assert_near(&what, amplification(counts), expected, 0.015);
        }
    }
}

#[test]
fn uniform_writes_cost_a_drive_that_collects_in_order_what_theory_says() {
    for percent in [7, 15, 28] {
        let provisioning = f64::from(percent) / 100.0;
        let (mut ftl, shape) = drive(64, provisioning, Policy::Fifo);
        let counts = steady(&mut ftl, shape.units, 4, 2);
        let expected = fifo(1.0 + provisioning);
        assert_near(&format!("fifo, {percent} %"), amplification(counts), expected, 0.01);
    }
}

#[test]
fn writes_in_sequence_cost_nothing_more() {
    for policy in [Policy::Greedy, Policy::Fifo, Policy::CostBenefit] {
        let (mut ftl, shape) = drive(64, 0.07, policy);
        for _ in 0..4 {
            (0..shape.units).for_each(|unit| ftl.write(unit, 0));
        }
        assert_eq!(ftl.counts().copied, 0, "{policy:?}");
    }
}

/// Trimmed space is free space: half of a drive of 7 % is one of 114 %.
#[test]
fn what_is_trimmed_is_space_for_the_collector() {
    let (mut ftl, shape) = drive(128, 0.07, Policy::Greedy);
    (0..shape.units).for_each(|unit| ftl.write(unit, 0));
    (shape.units / 2..shape.units).for_each(|unit| ftl.trim(unit));
    let counts = steady(&mut ftl, shape.units / 2, 4, 2);
    assert_near("half trimmed", amplification(counts), greedy(128.0, 2.14), 0.015);
}

#[test]
fn a_trim_of_what_is_written_again_at_once_changes_no_counts_but_its_own() {
    let (mut plain, shape) = drive(64, 0.07, Policy::Greedy);
    let (mut trimmed, _) = drive(64, 0.07, Policy::Greedy);
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..4 * shape.units {
        let unit = rng.u32(0..shape.units);
        plain.write(unit, 0);
        trimmed.trim(unit);
        trimmed.write(unit, 0);
    }
    let but_trims = Counts { trimmed: 0, ..trimmed.counts() };
    assert_eq!(but_trims, plain.counts());
    assert!(trimmed.counts().trimmed > 0);
}

/// A block is erased before it is programmed again, and no unit is lost or doubled.
#[test]
fn nothing_is_lost_and_nothing_made() {
    for (policy, streams) in
        [(Policy::Greedy, 1), (Policy::Greedy, 3), (Policy::Fifo, 2), (Policy::CostBenefit, 2)]
    {
        let shape = Shape { units: 2000, units_per_block: 16, blocks: 140, streams, ..SHAPE };
        let mut ftl = Ftl::new(shape, policy);
        let mut live = vec![false; 2000];
        let mut rng = fastrand::Rng::with_seed(5);
        for _ in 0..200_000 {
            let unit = rng.u32(0..2000);
            let stream = rng.u8(0..streams);
            if rng.u8(0..8) == 0 {
                ftl.trim(unit);
                live[unit as usize] = false;
            } else {
                ftl.write(unit, stream);
                live[unit as usize] = true;
            }
        }
        let counts = ftl.counts();
        assert_eq!(ftl.erases().map(u64::from).sum::<u64>(), counts.erased);
        // Each block holds what was programmed since it was erased: the total is between that of
        // all live units and of the whole drive.
        let programmed = counts.written + counts.copied;
        let held = programmed - counts.erased * 16;
        assert!(held <= 140 * 16, "{policy:?}: {counts:?}");
        assert!(held >= live.iter().filter(|live| **live).count() as u64, "{policy:?}: {counts:?}");
        // A trim of a dead unit is not counted.
        for (unit, is_live) in (0..).zip(live) {
            let before = ftl.counts().trimmed;
            ftl.trim(unit);
            assert_eq!(ftl.counts().trimmed > before, is_live, "{policy:?}: unit {unit}");
        }
    }
}

/// Units with equal lifetimes that are stored together cost less: a stream for each of two
/// lifetimes.
#[test]
fn streams_tell_lifetimes_apart() {
    let costs = [1, 2].map(|streams| {
        let shape = Shape { units: 60_000, units_per_block: 64, blocks: 1024, streams, ..SHAPE };
        let mut ftl = Ftl::new(shape, Policy::Greedy);
        let mut rng = fastrand::Rng::with_seed(2);
        let hot = shape.units / 10;
        let mut write = |ftl: &mut Ftl| match rng.u8(0..10) {
            0 => ftl.write(rng.u32(hot..shape.units), 0),
            _ => ftl.write(rng.u32(0..hot), streams - 1),
        };
        (0..8 * shape.units).for_each(|_| write(&mut ftl));
        let before = ftl.counts();
        (0..4 * shape.units).for_each(|_| write(&mut ftl));
        amplification(ftl.counts().since(&before))
    });
    println!("{costs:.3?}");
    assert!(costs[1] < 0.8 * costs[0], "{costs:?}");
}
