//! Replays of several images on one drive.

use std::path::PathBuf;

use flowstone_cache::PolicyKind;
use flowstone_image::Format;
use flowstone_replay::{
    CacheOptions, Event, Kind, Load, Onto, ReplayOptions, Report, Trace, replay,
};

const MIB: u64 = 1 << 20;
const OPS: u64 = 40_000;

fn of(images: usize, format: Format, load: Load) -> ReplayOptions {
    let (size, fill, warmup) = (Some(128 * MIB), 0.4, Some(OPS));
    ReplayOptions { images, size, fill, warmup, ..ReplayOptions::new(load, format) }
}

fn generated(load: &str) -> Load {
    Load::Generated(load.parse().expect("a load"), Some(OPS))
}

fn run(options: &ReplayOptions) -> Report {
    replay(options, &mut |_, _| ()).expect("a replay")
}

#[test]
fn the_figures_are_those_of_all_images_together() {
    for format in Format::ALL {
        let [one, three] = [1, 3].map(|images| run(&of(images, format, generated("zipf:0.99"))));
        let (requests, written) = (three.figures.requests, three.figures.guest_blocks);
        assert_eq!((requests, written), (3 * OPS, 3.0 * OPS as f64), "{format}");
        assert_eq!(three.disk_bytes, 3 * one.disk_bytes);
        assert_eq!(three.drive_bytes, one.drive_bytes.map(|bytes| 3 * bytes));
        if format == Format::Raw {
            assert_eq!(three.figures.host_blocks, Some(written), "raw images add nothing");
        }
        let host = |report: &Report| report.figures.host_waf.unwrap();
        assert!((0.9..1.1).contains(&(host(&three) / host(&one))), "{format}: {three:?}, {one:?}");
    }
}

/// Uniform writes to several disks are uniform writes to one disk of their total size.
#[test]
fn a_drive_collects_several_raw_disks_as_it_does_one() {
    let total = |images, mib: u64| {
        let load = Load::Generated("uniform".parse().unwrap(), Some(4 * mib * 256));
        let (size, warmup) = (Some(mib * MIB), Some(7 * mib * 256));
        let options = ReplayOptions { size, fill: 0.8, warmup, ..of(images, Format::Raw, load) };
        run(&options).figures.total_waf.unwrap()
    };
    let (one, four) = (total(1, 256), total(4, 64));
    assert!((0.98..1.02).contains(&(four / one)), "{four} of four disks, {one} of one");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let caches = [None, Some(16 * MIB)];
    for (format, bytes) in Format::ALL.into_iter().flat_map(|it| caches.map(|bytes| (it, bytes))) {
        let cache = |bytes| CacheOptions { bytes, policy: PolicyKind::Lru, holds_journals: true };
        let options =
            ReplayOptions { cache: bytes.map(cache), ..of(2, format, generated("zipf:0.99")) };
        let text = |options: &ReplayOptions| serde_json::to_string(&run(options)).unwrap();
        let once = text(&options);
        assert_eq!(text(&options), once, "{format}");
        assert_ne!(text(&ReplayOptions { seed: 2, ..options }), once, "the seed changes nothing");
    }
}

#[test]
fn each_image_gets_the_whole_trace() {
    let mut events = vec![Event::new(Kind::Present, 0, MIB)];
    events.extend((0..500).map(|at| Event::new(Kind::Write, at % 64 * MIB, 8192)));
    events.extend((0..50).map(|at| Event::new(Kind::Read, at * MIB, 4096)));
    let load = Load::Trace(Trace { events, ..Trace::default() });
    let cache = CacheOptions { bytes: 16 * MIB, policy: PolicyKind::Lru, holds_journals: true };
    let options = |images| ReplayOptions {
        cache: Some(cache),
        warmup: None,
        ..of(images, Format::Raw, load.clone())
    };
    let [one, two] = [1, 2].map(|images| run(&options(images)));
    let counts = |report: &Report| {
        let data = &report.hits.as_ref().unwrap().data;
        let figures = &report.figures;
        [figures.requests, figures.writes, figures.reads, data.hits + data.misses]
    };
    assert_eq!(counts(&two), counts(&one).map(|count| 2 * count));
}

#[test]
fn what_is_no_number_of_images_is_said() {
    let onto = Some(Onto { path: PathBuf::from("/nowhere/image"), overwrite: false });
    let said = |images, onto| {
        let options = ReplayOptions { onto, ..of(images, Format::Raw, generated("uniform")) };
        replay(&options, &mut |_, _| ()).unwrap_err().to_string()
    };
    assert_eq!(said(0, None), "--images is 1 to 256");
    assert_eq!(said(257, None), "--images is 1 to 256");
    assert_eq!(said(2, onto), "--onto makes one image");
}
