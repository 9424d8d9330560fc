//! Whole replays: reproducible, in agreement with theory, and faithful to traces.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use flowstone_cache::PolicyKind;
use flowstone_fileio::{Access, OpenOptions};
use flowstone_formats::CreateOptions;
use flowstone_image::Format;
use flowstone_log::{CopyMemory, LogOptions, ResortLimit, Streams};
use flowstone_replay::{
    CacheOptions, Class, Event, Kind, KindBlocks, Load, Onto, Phase, ReplayOptions, Report,
    SsdOptions, Timing, Trace, TrimMode, replay,
};

const MIB: u64 = 1 << 20;

fn options(format: Format, load: Load) -> ReplayOptions {
    let warmup = Some(60_000);
    ReplayOptions { size: Some(256 * MIB), fill: 0.5, warmup, ..ReplayOptions::new(load, format) }
}

fn generated(load: &str, ops: u64) -> Load {
    Load::Generated(load.parse().expect("a load"), Some(ops))
}

fn run(options: &ReplayOptions) -> Report {
    replay(options, &mut |_, _| ()).expect("a replay")
}

fn event(kind: Kind, offset: u64, bytes: u64) -> Event {
    Event::new(kind, offset, bytes)
}

fn of_trace(format: Format, events: Vec<Event>) -> ReplayOptions {
    let warmup = None;
    ReplayOptions { warmup, ..options(format, Load::Trace(Trace { events, ..Trace::default() })) }
}

#[test]
fn the_same_seed_gives_the_same_figures_on_a_busy_machine_too() {
    for format in Format::ALL {
        let options = options(format, generated("zipf:0.99", 60_000));
        let quiet = serde_json::to_string(&run(&options)).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let busy = serde_json::to_string(&run(&options)).unwrap();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(busy, quiet, "{format}");
        });
        let other = run(&ReplayOptions { seed: 2, ..options });
        assert_ne!(serde_json::to_string(&other).unwrap(), quiet, "the seed changes nothing");
    }
}

/// In place with TRIM: 80 % of the drive live, 7 % over-provisioning, erase blocks of 512 KiB. The
/// values are from an independent simulator.
#[test]
fn writes_in_place_cost_a_drive_what_another_simulator_says() {
    for (load, expected) in [("uniform", 2.16), ("hotcold:95/5", 2.65)] {
        let size = Some(512 * MIB);
        let load = generated(load, 4 * 131_072);
        let warmup = Some(7 * 131_072);
        let options = ReplayOptions { size, fill: 0.8, warmup, ..options(Format::Raw, load) };
        let report = run(&options);
        let total = report.figures.total_waf.unwrap();
        assert!((expected * 0.97..expected * 1.03).contains(&total), "{total} for {expected}");
        assert_eq!(
            (report.figures.host_waf, report.figures.guest_blocks),
            (Some(1.0), 4.0 * 131_072.0)
        );
    }
}

/// Before any block is written twice, nothing is copied: a log only adds its headers and maps.
#[test]
fn a_log_that_is_not_full_costs_its_headers() {
    let report = run(&options(Format::Log, generated("sequential", 20_000)));
    let (host, device) = (report.figures.host_waf.unwrap(), report.figures.device_waf.unwrap());
    assert!((1.02..1.2).contains(&host), "{report:?}");
    assert!((0.99..1.01).contains(&device), "{report:?}");
}

/// What the image writes and the drive copies, by kind, is all that they do.
#[test]
fn the_kinds_of_writes_add_up() {
    let (size, fill, warmup) = (Some(256 * MIB), 0.6, Some(120_000));
    let load = generated("zipf:0.99", 120_000);
    let options = ReplayOptions { size, fill, warmup, ..options(Format::Log, load) };
    let drive = SsdOptions { block_bytes: 2 * MIB, unit_bytes: 8 << 10, ..options.ssd };
    let report = run(&ReplayOptions { ssd: drive, ..options.clone() });
    let (figures, kinds) = (&report.figures, report.kinds.expect("a log image"));
    let sum = |of: fn(&KindBlocks) -> f64| kinds.named().iter().map(|(_, it)| of(it)).sum::<f64>();
    assert_eq!(Some(sum(|it| it.host_blocks)), figures.host_blocks, "{kinds:?}");
    // A write of half a unit programs the other half, too.
    let copied = figures.device_blocks.unwrap() - figures.host_blocks.unwrap();
    let seen = sum(|it| it.copied_blocks);
    assert!(seen > 0.5 * copied && seen <= copied, "{seen} of {copied}: {kinds:?}");
    // But for the records that are in flight at either end.
    assert!((kinds.data.host_blocks - figures.guest_blocks).abs() < 100.0, "{kinds:?}");
    for (name, it) in kinds.named() {
        assert_eq!(it.host_blocks > 0.0, name != "earlier data", "{name}: {kinds:?}");
    }
    let copies = kinds.copies.copied_blocks + kinds.data.copied_blocks;
    assert!(copies > 0.8 * seen, "{kinds:?}");
    let is_aged = SsdOptions { is_aged: true, trim: TrimMode::Off, ..drive };
    let aged = run(&ReplayOptions { ssd: is_aged, ..options.clone() }).kinds.unwrap();
    assert!(aged.earlier.copied_blocks > 0.0 && aged.earlier.host_blocks == 0.0, "{aged:?}");
    assert_eq!(run(&ReplayOptions { format: Format::Raw, ..options }).kinds, None);
}

/// The image is compared with a log that has nothing but the data, and no spare segments.
#[test]
fn an_ideal_log_with_the_live_share_of_the_image_writes_less() {
    let load = |name| generated(name, 2 * 65_536);
    let (size, fill, warmup) = (Some(256 * MIB), 0.6, Some(4 * 65_536));
    for (name, least) in [("uniform", 0.75), ("zipf:0.99", 0.75), ("sequential", 0.85)] {
        let mut options = ReplayOptions { size, fill, warmup, ..options(Format::Log, load(name)) };
        options.create.log.segment_bytes = Some(MIB);
        let report = run(&options);
        let (ideal, host) = (report.ideal.expect("a log image"), report.figures.host_waf.unwrap());
        assert!((0.5..1.0).contains(&ideal.live_share), "{name}: {ideal:?}");
        assert!((least..1.0).contains(&(ideal.waf / host)), "{name}: {ideal:?}, host {host}");
        let ratio = report.figures.total_waf.unwrap() / ideal.waf;
        assert_eq!(ideal.total_to_ideal, Some(ratio), "{name}");
    }
    let raw = ReplayOptions { size, fill, warmup, ..options(Format::Raw, load("uniform")) };
    assert_eq!(run(&raw).ideal, None);
}

/// Fewer lifetimes of copies, and a stream of its own for what is soon written again, make a
/// difference.
#[test]
fn lifetimes_are_fewer_or_more_as_asked() {
    let with = |lifetimes: Option<u8>, tells_soon| {
        let (size, fill, warmup) = (Some(256 * MIB), 0.6, Some(120_000));
        let load = generated("zipf:0.99", 40_000);
        let mut options = ReplayOptions { size, fill, warmup, ..options(Format::Log, load) };
        options.create.log.segment_bytes = Some(MIB);
        options.image.copy_lifetimes = lifetimes;
        options.tells_soon = tells_soon;
        if tells_soon {
            options.create.log.streams = Streams::Class;
        }
        run(&options).figures.host_waf.unwrap()
    };
    let [one, two, all] = [Some(1), Some(2), Some(4)].map(|count| with(count, false));
    assert_eq!(all, with(None, false), "all are the default");
    assert!(one != two && two != all && with(None, true) != all, "{one} {two} {all}");
}

/// Records of guests and of copies that share an erase block die at different times.
#[test]
fn copies_in_runs_leave_the_drive_little_to_copy() {
    let with_memory = |bytes| {
        let load = generated("zipf:0.99", 150_000);
        let (size, warmup) = (Some(512 * MIB), Some(250_000));
        let mut options = ReplayOptions { size, fill: 0.6, warmup, ..options(Format::Log, load) };
        options.create.log.segment_bytes = Some(8 * MIB);
        options.ssd.trim = TrimMode::Off;
        options.image.copy_memory = CopyMemory::new(bytes);
        run(&options).figures.device_waf.expect("a model tells")
    };
    let (none, enough) = (with_memory(0), with_memory(64 << 20));
    assert!(enough < 1.0 + 0.7 * (none - 1.0), "{enough} with memory, {none} without");
}

/// Even without memory for runs, on erase blocks larger than a run.
#[test]
fn copies_in_a_write_stream_leave_the_drive_little_to_copy() {
    let with_streams = |streams| {
        let load = generated("zipf:0.99", 150_000);
        let (size, warmup) = (Some(512 * MIB), Some(250_000));
        let mut options = ReplayOptions { size, fill: 0.6, warmup, ..options(Format::Log, load) };
        options.create.log.segment_bytes = Some(8 * MIB);
        options.ssd = SsdOptions { streams, block_bytes: 4 * MIB, ..options.ssd };
        let figures = run(&options).figures;
        (figures.host_waf, figures.device_waf.expect("a model tells"))
    };
    let ((_, mixed), (image, apart)) = (with_streams(0), with_streams(1));
    assert!(apart < 1.0 + 0.3 * (mixed - 1.0), "{apart} apart, {mixed} without; image {image:?}");
}

#[test]
fn small_units_of_the_host_are_whole_ones_of_the_drive() {
    let ssd: SsdOptions = "unit=16K".parse().unwrap();
    let raw = run(&ReplayOptions { ssd, ..options(Format::Raw, generated("uniform", 60_000)) });
    assert!(raw.figures.device_waf.unwrap() >= 4.0, "{raw:?}");
    let log = run(&ReplayOptions { ssd, ..options(Format::Log, generated("uniform", 60_000)) });
    assert!(log.figures.device_waf.unwrap() < 2.0, "{log:?}");
}

#[test]
fn phases_of_a_trace_have_figures_that_add_up() {
    let mut events = vec![event(Kind::Present, 0, MIB)];
    events.extend((0..300).map(|at| event(Kind::Write, at % 64 * MIB, 2 * MIB)));
    events.push(event(Kind::Discard, 0, MIB));
    let phase = |name: &str, first| Phase { name: name.into(), first };
    let phases = vec![phase("make", 0), phase("run", 101), phase("run", 151)];
    let trace = Trace { events, phases, ..Trace::default() };
    let mut options = of_trace(Format::Raw, Vec::new());
    options.load = Load::Trace(trace);
    let report = run(&options);
    let of = |report: &Report| -> Vec<(String, u64, f64)> {
        let phases = report.phases.iter();
        phases.map(|it| (it.name.clone(), it.figures.writes, it.figures.guest_blocks)).collect()
    };
    // A write of two MiB is two requests.
    let of_trace = [
        ("make".to_owned(), 200, 100.0 * 512.0),
        ("run".to_owned(), 100, 50.0 * 512.0),
        ("run".to_owned(), 300, 150.0 * 512.0),
    ];
    assert_eq!(of(&report), of_trace);
    let sum: f64 = report.phases.iter().filter_map(|it| it.figures.device_blocks).sum();
    assert_eq!(Some(sum), report.figures.device_blocks);
    assert_eq!(report.phases[2].figures.discards, 1);
    let twice = run(&ReplayOptions { passes: 2, ..options.clone() });
    assert_eq!(of(&twice), [of_trace.clone(), of_trace.clone()].concat());
    // Parts outside the measured part begin and end before it.
    let later = run(&ReplayOptions { warmup: Some(51), ..options });
    assert_eq!(of(&later), of_trace[1..]);
}

/// Space discarded by the guest is free for the drive, if it receives TRIMs.
#[test]
fn discards_of_a_trace_reach_the_drive() {
    let mut events: Vec<_> = (0..64).map(|at| event(Kind::Present, at * MIB, MIB)).collect();
    events.push(event(Kind::Discard, 0, 48 * MIB));
    events.push(event(Kind::Flush, 0, 0));
    for round in 0..40_000_u64 {
        events.push(event(Kind::Write, 48 * MIB + round * 7 % 4096 * 4096, 4096));
    }
    let total = |ssd: &str, format| {
        let ssd = ssd.parse().unwrap();
        let options = ReplayOptions {
            size: Some(64 * MIB),
            fill: 1.0,
            ssd,
            ..of_trace(format, events.clone())
        };
        let report = run(&options);
        assert_eq!(
            (report.figures.discards, report.figures.flushes, report.figures.writes),
            (1, 1, 40_000)
        );
        (report.figures.total_waf.unwrap(), report.figures.punches)
    };
    let ((on, punches), (off, _)) = (total("", Format::Raw), total("trim=off", Format::Raw));
    assert!(on < off && punches == 1, "{on} with trims, {off} without, {punches} punches");
    let (batch, _) = total("trim=batch:1M", Format::Raw);
    assert!(batch < off, "{batch} in batches, {off} without");
}

/// Parts of clusters are zeroed and rewritten, which is work of the slow path, the maintenance
/// worker and discards, each in its turn.
#[test]
fn a_qcow2_image_under_all_kinds_of_requests_at_once_gives_the_same_figures() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut any = || {
        let kind = match random.u8(..10) {
            0 => Kind::Flush,
            1 => Kind::WriteZeroes,
            2 => Kind::Discard,
            3 => Kind::Read,
            _ => Kind::Write,
        };
        let offset = random.u64(..64 * 256 - 64) * 4096;
        event(kind, offset, random.u64(1..64) * 4096)
    };
    let trace = of_trace(Format::Qcow2, (0..20_000).map(|_| any()).collect());
    let options = ReplayOptions { size: Some(64 * MIB), fill: 0.5, ..trace };
    let [one, other] = [(); 2].map(|()| serde_json::to_string(&run(&options)).unwrap());
    assert_eq!(one, other);
}

/// The file asks for room ahead of need, more than there is at last.
#[test]
fn a_qcow2_image_may_take_nearly_all_of_the_drive() {
    let load = generated("uniform", 20_000);
    let options = ReplayOptions { fill: 0.99, warmup: Some(0), ..options(Format::Qcow2, load) };
    let report = run(&options);
    assert_eq!(report.figures.writes, 20_000);
    assert!(
        report.figures.host_blocks.unwrap() < 20_100.0,
        "its tables beside the blocks: {report:?}"
    );
}

/// A guest splits a request that is too long, and memory stays bounded.
#[test]
fn long_requests_fall_into_parts() {
    let events = vec![event(Kind::Write, 512, 5 * MIB), event(Kind::Discard, 0, 64 * MIB)];
    let report = run(&of_trace(Format::Raw, events));
    assert_eq!(
        (report.figures.writes, report.figures.discards, report.figures.guest_blocks),
        (5, 1, 5.0 * 256.0)
    );
}

/// A recorded trace has the size of its disk, which may have grown meanwhile.
#[test]
fn the_disk_is_as_large_as_its_trace_says() {
    let of_size = |size, at| {
        let events = vec![event(Kind::Write, at, MIB)];
        let load = Load::Trace(Trace { events, size: Some(size), ..Trace::default() });
        run(&ReplayOptions { size: None, warmup: None, ..options(Format::Raw, load) }).disk_bytes
    };
    let of_mib = |size, at| of_size(size * MIB, at * MIB) / MIB;
    assert_eq!((of_mib(64, 0), of_mib(64, 79)), (64, 80));
}

#[test]
fn times_of_a_trace_are_kept_if_that_is_asked_for() {
    let at = |seconds| Some(std::time::Duration::from_secs(seconds));
    let events = [0, 1, 5].map(|time| Event { at: at(time), ..event(Kind::Write, 0, 4096) });
    let asap = of_trace(Format::Raw, events.to_vec());
    assert!(run(&asap).figures.seconds < 0.1);
    let timed = ReplayOptions { timing: Timing::Trace, passes: 2, ..asap };
    let report = run(&timed);
    assert!((9.9..10.1).contains(&report.figures.seconds), "{report:?}");
}

/// Some traces count from 1970, and some do not count in microseconds, such as those with Windows
/// file times. Regression: the time stood still before the second request, for ever.
#[test]
fn a_trace_begins_with_its_first_request_whenever_that_was() {
    let at = |micros| Some(std::time::Duration::from_micros(micros));
    let replayed = |times: [u64; 2], passes| {
        let events = times.map(|time| Event { at: at(time), ..event(Kind::Write, 0, 4096) });
        let options = of_trace(Format::Raw, events.to_vec());
        let options = ReplayOptions { timing: Timing::Trace, passes, ..options };
        replay(&options, &mut |_, _| ())
    };
    let report = replayed([1_700_000_000_000_000, 1_700_000_005_000_000], 2).unwrap();
    assert!((9.9..10.1).contains(&report.figures.seconds), "{report:?}");
    for (last, passes) in [(u64::MAX, 1), (20_000_000_000_000_000, 1), (10_000_000, u64::MAX / 2)] {
        let said = replayed([0, last], passes).unwrap_err().to_string();
        assert!(said.contains("a hundred years apart"), "{said}");
    }
}

/// A log image cleans and sorts while its guest is idle; that counts, too.
#[test]
fn a_log_image_works_on_in_the_pauses_of_a_trace() {
    let late = std::time::Duration::from_secs(60);
    let mut events: Vec<_> =
        (0..4096).map(|block| event(Kind::Write, block % 64 * 4096, 4096)).collect();
    events.push(Event { at: Some(late), ..event(Kind::Read, 0, 4096) });
    let events: Vec<_> = events
        .into_iter()
        .map(|it| Event { at: it.at.or(Some(std::time::Duration::ZERO)), ..it })
        .collect();
    let options = ReplayOptions { timing: Timing::Trace, ..of_trace(Format::Log, events) };
    let report = run(&options);
    assert!(report.figures.seconds >= 60.0, "{report:?}");
    assert!(report.figures.punches > 0, "no segment was given back in a minute: {report:?}");
}

#[test]
fn what_cannot_be_replayed_is_said() {
    let log = options(Format::Log, generated("uniform", 1));
    let raw = options(Format::Raw, generated("uniform", 1));
    for (options, why) in [
        (ReplayOptions { fill: 1.1, ..raw.clone() }, "--fill is a share"),
        (ReplayOptions { iodepth: 0, ..raw.clone() }, "--iodepth is 1 to"),
        (ReplayOptions { size: None, ..raw.clone() }, "give the --size"),
        (
            ReplayOptions {
                size: None,
                ..of_trace(Format::Raw, vec![event(Kind::Write, 0, 4096)])
            },
            "erase blocks of 512 KiB leave no room to clean in: give a smaller block",
        ),
        (ReplayOptions { size: Some(0), ..raw.clone() }, "a --size of 0 B is less than a block"),
        (ReplayOptions { size: Some(8192), ..log.clone() }, "a log image of 8 KiB takes up to"),
        (ReplayOptions { size: Some(u64::MAX), ..raw.clone() }, "a disk of 16777216 TiB is too"),
        (ReplayOptions { passes: 0, ..raw.clone() }, "--passes is at least 1"),
        (ReplayOptions { warmup: Some(u64::MAX), ..raw.clone() }, "--warmup and --ops are too"),
        (
            ReplayOptions {
                passes: u64::MAX,
                ..of_trace(Format::Raw, vec![event(Kind::Write, 0, 8 << 20)])
            },
            "--passes is too many",
        ),
        (ReplayOptions { timing: Timing::Trace, ..raw.clone() }, "a made load has no times"),
        (
            ReplayOptions {
                timing: Timing::Trace,
                ..of_trace(Format::Raw, vec![event(Kind::Write, 1 << 20, 4096)])
            },
            "the trace has no times",
        ),
        (ReplayOptions { fill: 0.99, ..log.clone() }, "a log image of 256 MiB takes up to"),
        (
            ReplayOptions { ssd: "block=64M".parse().unwrap(), ..raw },
            "erase blocks of 64 MiB leave no room to clean in",
        ),
        (
            ReplayOptions {
                size: Some(4096),
                ..of_trace(Format::Raw, vec![event(Kind::Write, 8192, 4096)])
            },
            "the trace goes on to 12288 bytes",
        ),
        (
            ReplayOptions {
                warmup: Some(1),
                ..of_trace(Format::Raw, vec![event(Kind::Write, 8192, 4096)])
            },
            "--warmup 1 leaves nothing to measure",
        ),
    ] {
        let said = format!("{:#}", replay(&options, &mut |_, _| ()).unwrap_err());
        assert!(said.starts_with(why), "{said}, not {why}");
    }
}

#[test]
fn an_error_names_the_largest_fill_if_there_is_one() {
    let log = options(Format::Log, generated("uniform", 1));
    let named = replay(&ReplayOptions { fill: 0.99, ..log.clone() }, &mut |_, _| ()).unwrap_err();
    let largest: f64 = named.to_string().rsplit(' ').next().unwrap().parse().unwrap();
    run(&ReplayOptions { fill: largest, ..log.clone() });
    let log = ReplayOptions { fill: 0.99, ssd: "block=8M".parse().unwrap(), ..log };
    let said = replay(&log, &mut |_, _| ()).unwrap_err().to_string();
    assert!(said.starts_with("erase blocks of 8 MiB leave no room to clean in"), "{said}");
}

/// Reads of blocks read or written before are answered by a cache, if there is one.
#[test]
fn a_cache_answers_reads_and_gives_the_same_figures_each_time() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut any = || {
        let kind = if random.u8(..4) == 0 { Kind::Write } else { Kind::Read };
        // Half of the requests go to 1 MiB.
        let blocks = if random.bool() { 256 } else { 16 * 256 };
        event(kind, random.u64(..blocks) * 4096, 4096)
    };
    let options = of_trace(Format::Raw, (0..40_000).map(|_| any()).collect());
    assert_eq!(run(&options).hits, None);
    for policy in PolicyKind::ALL {
        let cache = Some(CacheOptions { bytes: 4 * MIB, policy, holds_journals: false });
        let options = ReplayOptions { cache, ..options.clone() };
        let [one, other] = [(); 2].map(|()| run(&options));
        assert_eq!(one, other);
        let hits = one.hits.expect("there is a cache");
        assert!(hits.data.hit_ratio.unwrap() > 0.4, "{policy:?}: {hits:?}");
        assert_eq!(hits.data.hits + hits.data.misses, one.figures.reads);
    }
}

/// A log image with two streams separates metadata from data.
#[test]
fn classes_and_durability_of_a_trace_reach_the_image_and_the_cache() {
    let read = |class| Event { class: Some(class), ..event(Kind::Read, 0, 4096) };
    let mut events = vec![event(Kind::Write, 0, 4096)];
    events.extend([Class::Data, Class::Metadata, Class::Metadata, Class::Journal].map(read));
    let cache = CacheOptions { bytes: 4 * MIB, policy: PolicyKind::Lru, holds_journals: false };
    let options = ReplayOptions { cache: Some(cache), ..of_trace(Format::Raw, events) };
    let hits = run(&options).hits.unwrap();
    let [data, metadata, journal] =
        [&hits.data, &hits.metadata, &hits.journal].map(|it| it.hits + it.misses);
    assert_eq!((data, metadata, journal), (1, 2, 0), "journals pass by: {hits:?}");
    let durable = (0..100).map(|at| Event { durable: true, ..event(Kind::Write, at * 8192, 4096) });
    let durable = of_trace(Format::Log, durable.collect());
    let seconds = |options: &ReplayOptions| run(options).figures.device_seconds.unwrap();
    let plain = (0..100).map(|at| event(Kind::Write, at * 8192, 4096)).collect();
    assert!(seconds(&durable) > seconds(&of_trace(Format::Log, plain)), "no sync was paid for");
}

fn onto(path: &Path, format: Format, overwrite: bool) -> ReplayOptions {
    let events = (0..500).map(|at| event(Kind::Write, at % 100 * 4096, 4096));
    let events = events.chain([event(Kind::Flush, 0, 0), event(Kind::Read, 0, 8192)]);
    let onto = Some(Onto { path: path.to_owned(), overwrite });
    ReplayOptions { onto, size: Some(16 * MIB), ..of_trace(format, events.collect()) }
}

#[test]
fn a_load_can_be_put_onto_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for format in Format::ALL {
        let path = folder.path().join(format.name());
        let report = run(&onto(&path, format, false));
        assert_eq!(
            (report.figures.writes, report.figures.reads, report.figures.guest_blocks),
            (500, 1, 500.0)
        );
        let of_model = (
            report.figures.device_blocks,
            report.figures.erases,
            report.figures.device_seconds,
            report.drive_bytes,
        );
        assert_eq!(of_model, (None, None, None, None));
        let info = flowstone_formats::inspect(&path, format).unwrap();
        assert_eq!(info.space.virtual_bytes, 16 * MIB, "the image stays");
    }
}

type Change = fn(&mut ReplayOptions);

/// Invalid options and the expected messages.
fn wrong_options() -> [(Change, &'static str); 4] {
    [
        (|it| it.timing = Timing::Trace, "the trace has no times"),
        (|it| it.warmup = Some(1000), "leaves nothing to measure"),
        (|it| it.create.log.segment_bytes = Some(1 << 20), "has no segments"),
        (
            |it| it.image.args.resort = Some(ResortLimit::Bytes(1)),
            "only a log image is put in order",
        ),
    ]
}

/// A file's content is overwritten only with --overwrite, and never while another process uses it.
#[test]
fn a_load_is_put_onto_nothing_that_is_in_use_or_not_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it");
    let refused =
        |options: &ReplayOptions| format!("{:#}", replay(options, &mut |_, _| ()).unwrap_err());
    std::fs::write(&path, "theirs").unwrap();
    let said = refused(&onto(&path, Format::Raw, false));
    assert!(said.contains("is not empty; give another --onto, or --overwrite"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    let theirs = OpenOptions::new(Access::Write).open(&path).unwrap();
    for overwrite in [false, true] {
        let said = refused(&onto(&path, Format::Raw, overwrite));
        assert!(said.contains("another process is using this image"), "{said}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
    drop(theirs);
    for (change, why) in wrong_options() {
        let mut options = onto(&path, Format::Raw, true);
        change(&mut options);
        let said = refused(&options);
        assert!(said.contains(why), "{said}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs", "{why}");
    }
    run(&onto(&path, Format::Log, true));
    let new = folder.path().join("new");
    let impossible = ReplayOptions {
        create: CreateOptions {
            log: LogOptions { reserve_percent: Some(99), ..LogOptions::default() },
            ..CreateOptions::default()
        },
        ..onto(&new, Format::Log, false)
    };
    refused(&impossible);
    assert!(!new.exists(), "what could not be finished is left");
    let said = refused(&onto(folder.path(), Format::Raw, true));
    assert!(said.contains("it is a directory"), "{said}");
}

/// A loop device takes no lock, and its file may have several names.
#[test]
fn a_load_is_put_onto_no_file_that_a_loop_device_shows_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let [path, other] = ["it", "other"].map(|name| folder.path().join(name));
    std::fs::write(&path, [7; 65_536]).unwrap();
    std::fs::hard_link(&path, &other).unwrap();
    let Some(_device) = LoopDevice::of(&path) else { return };
    for path in [path, other] {
        let said = replay(&onto(&path, Format::Raw, true), &mut |_, _| ()).unwrap_err();
        assert!(format!("{said:#}").contains("detach it first (losetup -d)"), "{said:#}");
        assert_eq!(std::fs::read(&path).unwrap(), [7; 65_536]);
    }
}

/// Regression: the device was emptied first, and then there was a bare EOPNOTSUPP.
#[test]
fn no_qcow2_image_is_put_onto_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("it");
    std::fs::write(&path, [7; 65_536]).unwrap();
    let Some(device) = LoopDevice::of(&path) else { return };
    let onto = onto(Path::new(&device.0), Format::Qcow2, true);
    let said = format!("{:#}", replay(&onto, &mut |_, _| ()).unwrap_err());
    assert!(said.contains("give a file, or --format raw or log"), "{said}");
    drop(device);
    assert_eq!(std::fs::read(&path).unwrap(), [7; 65_536]);
}

/// A loop device, detached when dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// Returns `None`, and says why, if this user may have none.
    fn of(file: &Path) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let why = match made {
            Ok(made) if made.status.success() => {
                return Some(Self(String::from_utf8_lossy(&made.stdout).trim().into()));
            }
            Ok(made) => String::from_utf8_lossy(&made.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        flowstone_testkit::skip(format_args!("no loop device: {why}"));
        None
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}
