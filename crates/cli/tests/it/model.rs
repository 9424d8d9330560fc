//! Random requests against a reference disk, on several stacks.

use std::time::{Duration, Instant};

use flowstone_testkit::{Client, Model, Status, virtio};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::fixture::{Place, pattern, stop};

const DISK_BYTES: u64 = 2 << 20;
const SECTORS: u64 = DISK_BYTES / 512;

#[derive(Clone, Debug)]
enum Step {
    Write { sector: u64, sectors: u64, seed: u8 },
    Read { sector: u64, sectors: u64 },
    Discard { ranges: Vec<(u64, u64)> },
    Zero { ranges: Vec<(u64, u64)>, unmap: bool },
    Flush,
    Restart,
}

/// A range within the disk; small ones are likely, so that steps collide.
fn range() -> impl Strategy<Value = (u64, u64)> {
    (0..SECTORS, prop_oneof![4 => 1..24u64, 1 => 1..512u64])
        .prop_map(|(start, count)| (start, count.min(SECTORS - start)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (range(), any::<u8>())
            .prop_map(|((sector, sectors), seed)| Step::Write { sector, sectors, seed }),
        6 => range().prop_map(|(sector, sectors)| Step::Read { sector, sectors }),
        2 => prop::collection::vec(range(), 1..8).prop_map(|ranges| Step::Discard { ranges }),
        2 => (prop::collection::vec(range(), 1..8), any::<bool>())
            .prop_map(|(ranges, unmap)| Step::Zero { ranges, unmap }),
        1 => Just(Step::Flush),
        1 => Just(Step::Restart),
    ]
}

fn zero(model: &mut Model, ranges: &[(u64, u64)]) {
    for (sector, sectors) in ranges {
        model.zero(sector * 512, sectors * 512);
    }
}

fn narrow(ranges: &[(u64, u64)]) -> Vec<(u64, u32)> {
    ranges.iter().map(|(sector, sectors)| (*sector, *sectors as u32)).collect()
}

fn take(client: &mut Client, model: &mut Model, step: &Step) {
    match step {
        Step::Write { sector, sectors, seed } => {
            let data = pattern(*sectors as usize * 512, *seed);
            assert_eq!(client.write(*sector, &data).unwrap(), Status::Ok);
            model.write(sector * 512, &data);
        }
        Step::Read { sector, sectors } => {
            let mut found = vec![0xcc; *sectors as usize * 512];
            assert_eq!(client.read(*sector, &mut found).unwrap(), Status::Ok);
            model.check(sector * 512, &found);
        }
        Step::Discard { ranges } => {
            assert_eq!(client.discard(&narrow(ranges)).unwrap(), Status::Ok);
            zero(model, ranges);
        }
        Step::Zero { ranges, unmap } => {
            assert_eq!(client.write_zeroes(&narrow(ranges), *unmap).unwrap(), Status::Ok);
            zero(model, ranges);
        }
        Step::Flush => assert_eq!(client.flush().unwrap(), Status::Ok),
        Step::Restart => {
            client.stop().unwrap();
            client.start().unwrap();
        }
    }
}

fn behaves_like_the_model(args: &[&str], without: u64) {
    run_cases(args, without, 24, 60);
}

/// Runs random lists of at most `steps_max` steps. A failing list is printed, shrunk; its seed is
/// kept beside this file.
fn run_cases(args: &[&str], without: u64, cases: u32, steps_max: usize) {
    let mut runner = TestRunner::new(Config { cases, ..Config::default() });
    let steps = prop::collection::vec(step(), 1..steps_max);
    let outcome = runner.run(&steps, |steps| {
        let place = Place::new();
        place.image("2M");
        let daemon = place.serve(args);
        let mut client = Client::connect(place.options().without(without)).unwrap();
        let mut model = Model::new(DISK_BYTES);
        steps.iter().for_each(|step| take(&mut client, &mut model, step));
        let mut all = vec![0; 1 << 20];
        for half in 0..2 {
            assert_eq!(client.read(half * SECTORS / 2, &mut all).unwrap(), Status::Ok);
            model.check(half * DISK_BYTES / 2, &all);
        }
        drop(client);
        stop(daemon);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_raw_disk_behaves_like_the_model() {
    behaves_like_the_model(&["disk.raw"], 0);
}

#[test]
fn a_raw_disk_behaves_like_the_model_in_plain_rings() {
    behaves_like_the_model(&["disk.raw"], virtio::F_EVENT_IDX | virtio::F_INDIRECT_DESC);
}

#[test]
fn the_sync_engine_behaves_like_the_model() {
    behaves_like_the_model(&["--engine", "sync", "--direct", "off", "disk.raw"], 0);
}

#[test]
fn a_disk_with_a_cache_behaves_like_the_model() {
    for policy in ["default", "multicache"] {
        let cache = ["--cache", "1M", "--cache-policy", policy];
        behaves_like_the_model(&[&cache[..], &["--layer", "verify", "disk.raw"]].concat(), 0);
    }
}

#[test]
fn a_disk_on_a_thread_of_its_own_behaves_like_the_model() {
    behaves_like_the_model(&["--pollers", "per-queue", "disk.raw"], 0);
}

#[test]
fn a_disk_with_a_limit_behaves_like_the_model() {
    let limit = ["--limit", "iops=5000,bw=60M"];
    behaves_like_the_model(&[&limit[..], &["--layer", "verify", "disk.raw"]].concat(), 0);
}

#[test]
fn a_disk_whose_queue_has_two_threads_behaves_like_the_model() {
    behaves_like_the_model(&["--pipeline", "split", "--layer", "verify", "disk.raw"], 0);
    let plain = virtio::F_EVENT_IDX | virtio::F_INDIRECT_DESC;
    behaves_like_the_model(&["--pipeline", "split", "--poll", "never", "disk.raw"], plain);
}

#[test]
fn a_memory_disk_behaves_like_the_model() {
    behaves_like_the_model(&["--backend", "mem:2M", "--layer", "verify"], 0);
}

#[test]
#[ignore = "runs for SOAK_MINUTES: make soak"]
fn soak_disks_behave_like_the_model() {
    let minutes = std::env::var("SOAK_MINUTES").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(60 * minutes.unwrap_or(10));
    while Instant::now() < end {
        for engine in ["uring", "sync"] {
            run_cases(&["--engine", engine, "--layer", "delay=0-200us", "disk.raw"], 0, 16, 1000);
        }
    }
}
