//! Power is cut at every moment of short runs. The content found must include all durable changes,
//! and be a prefix of the guest's changes; recovery may itself be interrupted.

use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_sim::{Call, Fate, Fault, Moment, Schedule, SimDisk};

use super::fixture::{Fixture, Mix, Setup, contents_read_only, without_history};
use super::history_model::{End, HistoryModel, Stamp};

/// Number of crashes checked, by all tests of a process.
pub static CRASHES: AtomicU64 = AtomicU64::new(0);

/// Checks the state after a power cut, without opening it for writing.
pub fn look(disk: &SimDisk, model: &HistoryModel, moment: Moment) -> Vec<Stamp> {
    CRASHES.fetch_add(1, Ordering::Relaxed);
    let seen = contents_read_only(disk).unwrap();
    model.judge(&seen, moment, End::PowerCut).unwrap();
    seen
}

/// Opens and judges the state after a crash. Returns the open image with a new history.
pub fn recover(
    disk: &SimDisk,
    setup: Setup,
    model: &HistoryModel,
    moment: Moment,
    end: End,
    seed: u64,
) -> Fixture {
    CRASHES.fetch_add(1, Ordering::Relaxed);
    let seen = contents_read_only(disk).unwrap();
    model.judge(&seen, moment, end).unwrap();
    let next = HistoryModel::new(seen.clone(), model.next_stamp());
    let fixture = Fixture::open(disk, setup, next, seed).unwrap();
    assert_eq!(fixture.contents(), seen, "what a reader saw, and what recovery made of it");
    fixture.audit();
    fixture
}

/// Continues to use the image: writes, closes, and reopens it.
pub fn go_on(mut fixture: Fixture, requests: u32) {
    fixture.run(requests);
    fixture.check();
    let mut fixture = fixture.reopen().unwrap();
    fixture.check();
}

/// Recovers from a crash at `moment`, with each given fate, and judges the result.
pub fn crash_everywhere(
    disk: &SimDisk,
    setup: Setup,
    model: &HistoryModel,
    moments: impl Iterator<Item = Moment>,
    fates: impl Fn(usize) -> Vec<Fate>,
) -> usize {
    let mut count = 0;
    for (index, moment) in moments.enumerate() {
        for fate in fates(index) {
            let told = format!("{fate:?} at {moment:?}");
            let crashed = disk.crash_at(moment, &mut fate.clone());
            let guard = Tell(told);
            let fixture = recover(&crashed, setup, model, moment, End::PowerCut, index as u64);
            if index % 23 == 0 {
                go_on(fixture, 25);
            }
            drop(guard);
            count += 1;
        }
    }
    count
}

/// Prints the test's position when it fails.
pub struct Tell(pub String);

impl Drop for Tell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: {}", self.0);
        }
    }
}

pub fn three_fates(index: usize) -> Vec<Fate> {
    vec![Fate::nothing_more(), Fate::everything(), Fate::seeded(index as u64)]
}

fn one_fate(index: usize) -> Vec<Fate> {
    vec![Fate::seeded(index as u64 * 31)]
}

/// Returns about `count` moments of a disk's life, from first to last.
pub fn some_moments(disk: &SimDisk, count: usize) -> impl Iterator<Item = Moment> + use<> {
    let all: Vec<Moment> = disk.crash_points().collect();
    let step = (all.len() / count).max(1);
    all.into_iter().step_by(step)
}

/// A short run, cut at every moment.
pub fn short_run(seed: u64, fates: impl Fn(usize) -> Vec<Fate>) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    fixture.guests().mix = Mix { flush_percent: 12, ..Mix::on(40) };
    fixture.run(60);
    fixture.checkpoint().unwrap();
    fixture.run(30);
    let (disk, model) = fixture.close();
    crash_everywhere(&disk, setup, &model, disk.crash_points(), fates);
}

/// A very small image, cut at every moment many times: the main case of a soak.
pub fn tiny_run(seed: u64) {
    let setup = Setup { blocks: 40, split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    fixture.guests().mix = Mix { flush_percent: 15, zero_percent: 30, ..Mix::on(24) };
    fixture.run(40);
    fixture.checkpoint().unwrap();
    fixture.run(40);
    let (disk, model) = if seed.is_multiple_of(3) { fixture.close() } else { fixture.abandon() };
    for (index, moment) in disk.crash_points().enumerate() {
        for fate in three_fates(index + seed as usize * 1000) {
            let _tell = Tell(format!("{fate:?} at {moment:?}"));
            let crashed = disk.crash_at(moment, &mut fate.clone());
            match index % 16 {
                0 => drop(recover(&crashed, setup, &model, moment, End::PowerCut, seed)),
                _ => drop(look(&crashed, &model, moment)),
            }
        }
    }
}

#[test]
fn tiny_images_survive_every_power_cut() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        tiny_run(seed);
    }
}

#[test]
fn short_runs_survive_every_power_cut() {
    for seed in 0..4 {
        let _tell = Tell(format!("seed {seed}"));
        short_run(seed, |index| vec![three_fates(index).swap_remove((index + seed as usize) % 3)]);
    }
}

#[test]
fn every_subset_of_what_is_undecided_is_survived() {
    let setup = Setup { split: true, ..Setup::default() };
    let mut fixture = setup.fixture(7);
    fixture.disk.set_schedule(Schedule::Shuffled { seed: 7 });
    fixture.guests().mix = Mix { flush_percent: 25, depth: 4, ..Mix::on(12) };
    fixture.run(40);
    let (disk, model) = fixture.abandon();
    for moment in disk.crash_points() {
        let Some(crashes) = disk.every_crash_at(moment).filter(|_| disk.undecided_at(moment) <= 6)
        else {
            continue;
        };
        for (index, crashed) in crashes.enumerate() {
            let _tell = Tell(format!("subset {index} at {moment:?}"));
            drop(recover(&crashed, setup, &model, moment, End::PowerCut, 0));
        }
    }
}

/// Successive power cuts, on a host that only claims to discard: records that an earlier session
/// left behind the end are never taken for those of a later one.
pub fn cuts_in_a_row(seed: u64) {
    let setup = Setup { blocks: 40, split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = setup.fixture(seed);
    for round in 0..16 {
        fixture.disk.inject(Fault::lose().on(Call::Punch).always());
        fixture.disk.set_schedule(Schedule::Shuffled { seed });
        fixture.guests().mix = Mix { flush_percent: 3, depth: 12, ..Mix::writes(0..40) };
        let requests = fixture.guests().random.u32(0..9);
        fixture.run(requests);
        let opened = fixture.opened;
        let (disk, model) = fixture.abandon();
        let later: Vec<Moment> = disk.crash_points().filter(|it| *it >= opened).collect();
        let mut random = fastrand::Rng::with_seed(seed * 100 + round);
        let moment = later[random.usize(..later.len())];
        let _tell = Tell(format!("round {round}, cut at {moment:?}"));
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed * 100 + round));
        crashed.inject(Fault::lose().on(Call::Punch).always());
        fixture = recover(&crashed, setup, &model, moment, End::PowerCut, seed + round);
    }
}

#[test]
fn what_an_earlier_session_left_is_not_taken_for_what_a_later_one_wrote() {
    for seed in 0..60 {
        let _tell = Tell(format!("seed {seed}"));
        cuts_in_a_row(seed);
    }
}

/// A run long enough that segments are cleaned and reused several times.
fn cleaned_run(setup: Setup, seed: u64) -> Fixture {
    let mut fixture = setup.fixture(seed);
    fixture.guests().mix = Mix::writes(0..setup.blocks);
    fixture.run(setup.blocks as u32 * 4);
    fixture.flush().unwrap();
    let fixture = fixture.reopen().unwrap();
    fixture.disk.set_schedule(Schedule::Shuffled { seed });
    fixture
}

/// Power is cut while segments are cleaned and reused.
pub fn cleaning(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let (disk, model) = cleaned_run(setup, seed).close();
    let model = HistoryModel::new(model.latest(), model.next_stamp());
    let disk = without_history(&disk);
    disk.set_schedule(Schedule::Shuffled { seed });
    let mut fixture = Fixture::open(&disk, setup, model, seed).unwrap();
    fixture.guests().mix = Mix { depth: 6, ..Mix::on(setup.blocks) };
    let before = fixture.log.append_state().accounting().totals().relocated_blocks;
    fixture.run(500);
    assert!(fixture.log.append_state().accounting().totals().relocated_blocks > before + 50);
    fixture.check();
    let (disk, model) = fixture.abandon();
    crash_everywhere(&disk, setup, &model, some_moments(&disk, moments), one_fate);
}

#[test]
fn cleaning_survives_power_cuts() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        cleaning(seed, 50);
    }
}

/// Power is cut, and again at every moment of the recovery.
pub fn recovery(seed: u64, moments: usize) {
    let setup = Setup { split: seed % 2 == 1, ..Setup::default() };
    let mut fixture = cleaned_run(setup, seed);
    fixture.run(120);
    let (disk, model) = fixture.abandon();
    for (index, moment) in some_moments(&disk, moments).enumerate() {
        let crashed = disk.crash_at(moment, &mut Fate::seeded(seed + index as u64));
        let fixture = recover(&crashed, setup, &model, moment, End::PowerCut, seed);
        let seen = fixture.contents();
        drop(fixture);
        for (number, second) in crashed.crash_points().enumerate() {
            let again = crashed.crash_at(second, &mut Fate::seeded(seed + number as u64));
            let _tell = Tell(format!("cut {index} at {moment:?}, again at {second:?}"));
            let fixture = recover(&again, setup, &model, moment, End::PowerCut, seed);
            assert_eq!(fixture.contents(), seen, "recovery came to another end");
            if number % 7 == 0 {
                go_on(fixture, 20);
            }
        }
    }
}

#[test]
fn recovery_survives_power_cuts() {
    for seed in 0..2 {
        let _tell = Tell(format!("seed {seed}"));
        recovery(seed, 4);
    }
}
