//! Contents of images after a replay.

use std::sync::Arc;

use flowstone_block::{BlockingDisk, Sector};
use flowstone_fileio::FileIo as _;
use flowstone_formats::create_in;
use flowstone_image::{DiscardMode, Image};
use flowstone_ssd::{Ssd, SsdOptions};
use flowstone_trace::{Event, Kind, Trace};

use super::*;
use crate::Generator;
use crate::guest::requests_of;
use crate::model::check_memory;
use crate::options::Load;
use crate::plan::requests_to;

const DISK: u64 = 8 << 20;

/// Changes of all kinds, aligned to sectors, some of which overlap.
fn some_trace(seed: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut event = || {
        let kinds = [Kind::Write, Kind::Write, Kind::Write, Kind::Discard, Kind::WriteZeroes];
        let kind = if random.u8(..20) == 0 { Kind::Flush } else { *random.choice(&kinds).unwrap() };
        let offset = random.u64(..DISK / 512) * 512;
        let bytes = (random.u64(1..80) * 512).min(DISK - offset);
        Event::new(kind, offset, bytes)
    };
    Trace { events: (0..4000).map(|_| event()).collect(), ..Trace::default() }
}

fn options(format: Format, load: Load) -> ReplayOptions {
    ReplayOptions {
        size: Some(DISK),
        ssd: "op=28%,block=128K".parse().unwrap(),
        // Overlapping requests are unordered if they are in flight together.
        iodepth: 1,
        ..ReplayOptions::new(load, format)
    }
}

/// Returns the content of each disk after a replay.
fn contents(options: &ReplayOptions) -> Vec<Vec<u8>> {
    let log = LogOptions::default();
    let create = CreateOptions { log, ..CreateOptions::default() };
    let model = Model::new(options, &create, DISK, 4 * DISK, FILL_DEPTH).unwrap();
    let images = model.images();
    let medium = Box::new(model);
    let mut scene = Scene { medium, disk_bytes: DISK, drive_bytes: None, log: None };
    let plans = Plan::of_all(options, DISK).unwrap();
    scene.run(options, plans, &mut |_, _| ()).unwrap();
    let content = |image: Arc<dyn Image>| {
        let mut bytes = vec![0xaa; DISK as usize];
        let mut disk = BlockingDisk::new(&*image).unwrap();
        for (at, part) in bytes.chunks_mut(64 << 10).enumerate() {
            disk.read(Sector::new(at as u64 * 128), part).unwrap();
        }
        bytes
    };
    images.into_iter().map(content).collect()
}

#[test]
fn all_formats_hold_the_same_after_a_trace() {
    for seed in 0..4 {
        let trace = some_trace(seed);
        let of = |format| contents(&options(format, Load::Trace(trace.clone()))).remove(0);
        let raw = of(Format::Raw);
        for format in [Format::Qcow2, Format::Log] {
            let other = of(format);
            let differ = (0..DISK as usize).find(|at| raw[*at] != other[*at]);
            assert_eq!(
                differ, None,
                "seed {seed}, {format}: the byte at which it differs from raw"
            );
        }
        assert!(raw.iter().any(|byte| *byte != 0));
    }
}

/// Files of one drive do not overlap, and guests do not mix up their seeds.
#[test]
fn images_side_by_side_hold_what_each_would_hold_alone() {
    for format in Format::ALL {
        let of = |images, seed| {
            let load = Load::Generated("zipf:0.99".parse().unwrap(), Some(3000));
            let warmup = Some(3000);
            contents(&ReplayOptions { images, seed, warmup, ..options(format, load) })
        };
        let beside = of(3, 7);
        for (number, content) in beside.iter().enumerate() {
            let alone = of(1, 7 + number as u64).remove(0);
            assert!(*content == alone, "{format}: disk {number} differs");
        }
        assert!(beside[0] != beside[1], "{format}: the guests have the same load");
    }
}

/// Otherwise the last guest would be measured alone.
/// Log images had carried out the discards of a guest that was replayed without TRIM.
#[test]
fn a_guest_sends_no_discard_that_its_disk_does_not_offer() {
    for format in [Format::Raw, Format::Qcow2, Format::Log] {
        let events = [Kind::Write, Kind::Discard].map(|kind| Event::new(kind, 0, 64 << 10));
        let trace = Trace { events: events.to_vec(), ..Trace::default() };
        for (discard, stays) in [(DiscardMode::Deallocate, false), (DiscardMode::Ignore, true)] {
            let mut options = options(format, Load::Trace(trace.clone()));
            options.image.args.discard = discard;
            let content = contents(&options).remove(0);
            assert_eq!(content[..64 << 10].iter().any(|byte| *byte != 0), stays, "{format}");
        }
    }
}

#[test]
fn guests_come_to_their_ends_together() {
    const OPS: u64 = 30_000;
    for format in Format::ALL {
        let load = Load::Generated("uniform".parse().unwrap(), Some(OPS));
        let (images, iodepth) = (3, 32);
        let options = ReplayOptions { images, iodepth, warmup: Some(0), ..options(format, load) };
        let mut model =
            Model::new(&options, &CreateOptions::default(), DISK, 4 * DISK, iodepth).unwrap();
        let plans = Plan::of_all(&options, DISK).unwrap();
        for (guest, plan) in model.guests().iter().zip(plans) {
            guest.borrow_mut().set_load(plan.load, Pace::Depth(iodepth));
        }
        let done = |model: &Model| -> Vec<u64> {
            model.guests().iter().map(|guest| guest.borrow().of_load()).collect()
        };
        while !done(&model).contains(&OPS) {
            model.turn().unwrap();
        }
        let least = done(&model).into_iter().min().unwrap();
        assert!(least * 10 > OPS * 9, "{format}: {:?} of {OPS}", done(&model));
        model.run(u64::MAX, &mut |_| ()).unwrap();
    }
}

#[test]
fn a_drive_that_finds_no_memory_is_refused() {
    let ssd = SsdOptions::default();
    let needed = Ssd::memory_bytes(1 << 30, &ssd);
    assert!(((6 << 20)..(8 << 20)).contains(&needed), "{needed}");
    assert!(check_memory(1 << 30, &ssd, needed).is_ok());
    let said = check_memory(1 << 30, &ssd, needed - 1).unwrap_err().to_string();
    assert!(said.starts_with("a model of a drive of 1 GiB takes 6"), "{said}");
}

#[test]
fn writes_before_the_measured_part_are_counted_as_requests_are_made() {
    let event = |kind, bytes| Event::new(kind, 0, bytes);
    let events = [
        event(Kind::Read, 0),
        event(Kind::Write, 5 << 20),
        event(Kind::Flush, 0),
        event(Kind::Write, 4096),
    ];
    let once: Vec<_> = events.into_iter().flat_map(requests_of).collect();
    assert_eq!(once.len(), 7);
    assert_eq!(requests_to(&once, 1, 5).unwrap(), 6, "five parts and the flush");
    assert_eq!(requests_to(&once, 2, 7).unwrap(), 8, "a pass, and one part of the next");
}

/// A dropped queue waits for its discards, which no step would have executed any more.
#[test]
fn a_request_that_fails_ends_the_replay_when_the_others_are_back() {
    let ssd = Ssd::new(2 * DISK, "op=28%,block=128K".parse().unwrap()).unwrap();
    let file = ssd.file(DISK).unwrap();
    create_in(NAME, &file, Format::Raw, DISK, &CreateOptions::default()).unwrap();
    let options = ReplayOptions::new(Load::Trace(Trace::default()), Format::Raw);
    let mut model = Model::open(&options, ssd, vec![file.clone()], 8).unwrap();
    // The file has been truncated: reads beyond its end fail.
    file.set_size(DISK / 2).unwrap();
    let event = |kind, offset| Event::new(kind, offset, 4096);
    let reads = (0..1000).map(move |_| event(Kind::Read, DISK - 4096));
    let discards = (0..4).map(move |at| event(Kind::Discard, at * 8192));
    model.guests()[0].borrow_mut().set_load(Box::new(discards.chain(reads)), Pace::Depth(8));
    let said = model.run(u64::MAX, &mut |_| ()).unwrap_err().to_string();
    assert!(said.starts_with("a request failed: Read("), "{said}");
}

/// With one request in flight one die works at a time, with many all do.
#[test]
fn requests_in_flight_use_dies_side_by_side() {
    let seconds = |iodepth, ssd: &str| {
        let load = Load::Generated(Generator::Uniform, Some(2000));
        let ssd = ssd.parse().unwrap();
        let options = ReplayOptions { iodepth, ssd, ..options(Format::Raw, load) };
        replay(&options, &mut |_, _| ()).unwrap().figures.seconds
    };
    let gain = |ssd: &str| seconds(1, ssd) / seconds(32, ssd);
    // A command overlaps with the copies of another one.
    let of_one_rate = gain("op=28%,block=128K");
    assert!((1.0..2.0).contains(&of_one_rate), "{of_one_rate}");
    let of_dies = gain("op=28%,block=128K,dies=8,channels=2");
    assert!(of_dies > 2.0 * of_one_rate, "{of_dies} for {of_one_rate}");
}
