//! Runs all crash and fault tests again, with random seeds and for a long time.

use std::time::{Duration, Instant};

use std::sync::atomic::Ordering;

use super::crash::{CRASHES, Tell, three_fates};
use super::{
    churn, copies, crash, damage, faults, gather, kill, matrix, overlaps, races, space, threads_cut,
};

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_crashes_of_the_log() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let end = Instant::now() + Duration::from_secs(60 * number("SOAK_MINUTES").unwrap_or(10));
    let mut seed = number("SOAK_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let first = seed;
    eprintln!("SOAK_SEED={seed}");
    while Instant::now() < end {
        type HistoryModel = fn(u64);
        let models: [(&str, HistoryModel); 21] = [
            ("tiny", |seed| (seed * 100..seed * 100 + 60).for_each(crash::tiny_run)),
            ("faults and power cuts", |seed| {
                (0..matrix::CASES).for_each(|case| matrix::run(case, seed));
            }),
            ("cuts in a row", |seed| (seed * 20..seed * 20 + 20).for_each(crash::cuts_in_a_row)),
            ("overlaps", overlaps::run),
            ("many records", |seed| gather::many_records(seed, 60)),
            ("nearly full", |seed| churn::run(seed, 40)),
            ("copies", |seed| (seed * 4..seed * 4 + 4).for_each(|seed| copies::run(seed, 60))),
            ("threads", |seed| threads_cut::run(seed, 300, 60)),
            ("short runs", |seed| crash::short_run(seed, three_fates)),
            ("cleaning", |seed| crash::cleaning(seed, 300)),
            ("recovery", |seed| crash::recovery(seed, 10)),
            ("kills", |seed| kill::kills(seed, usize::MAX)),
            ("cut after kill", |seed| kill::cut_after_kill(seed, 10)),
            ("kills in a row", kill::kills_in_a_row),
            ("failed records", |seed| faults::failed_records(seed, 60)),
            ("failed checkpoints", |seed| faults::failed_checkpoints(seed, 60)),
            ("failed sync", |seed| faults::failed_sync(seed, 60)),
            ("flipped bits", damage::flipped_bits),
            ("misled writes", |seed| (seed..seed + 20).for_each(damage::misled_write)),
            ("parts and cleaning", races::parts_and_cleaning),
            ("full", |seed| {
                space::full_disk(seed, 10_000);
                space::full_host(seed);
                space::crashes_on_a_full_host(seed);
            }),
        ];
        eprintln!("seed {seed}");
        for (name, model) in models {
            let _tell = Tell(format!("{name}, SOAK_SEED={seed}"));
            model(seed);
        }
        seed += 1;
    }
    let crashes = CRASHES.load(Ordering::Relaxed);
    eprintln!("SOAK_SEED={first}: {crashes} simulated crashes, seeds {first} to {}", seed - 1);
}
