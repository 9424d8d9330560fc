//! Traces of `flowstone record`: read back as they were written, whole or cut anywhere.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use flowstone_trace::{Class, Event, Kind, Phase, Trace, Writer, read};

const KINDS: [Kind; 7] = [
    Kind::Read,
    Kind::Write,
    Kind::Flush,
    Kind::Discard,
    Kind::WriteZeroes,
    Kind::Access,
    Kind::Present,
];
const CLASSES: [Option<Class>; 4] =
    [None, Some(Class::Data), Some(Class::Metadata), Some(Class::Journal)];
const DISK_BYTES: u64 = 8 << 40;

fn any_event(random: &mut fastrand::Rng, at: u64) -> Event {
    let kind = KINDS[random.usize(0..KINDS.len())];
    let most = if matches!(kind, Kind::Discard | Kind::Present) { DISK_BYTES } else { 1 << 30 };
    let bytes = random.u64(0..=most);
    Event {
        at: Some(Duration::from_micros(at)),
        class: CLASSES[random.usize(0..CLASSES.len())],
        durable: random.bool(),
        ..Event::new(kind, random.u64(0..=DISK_BYTES - bytes), bytes)
    }
}

/// Makes a trace of this many events, and its text.
fn any_trace(seed: u64, events: usize) -> (Trace, Vec<u8>) {
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = Vec::new();
    let mut writer = Writer::begin(&mut text, DISK_BYTES, "raw").unwrap();
    let mut trace = Trace { size: Some(DISK_BYTES), ..Trace::default() };
    let mut at = 0;
    for number in 0..events {
        at += random.u64(0..10_000_000);
        if random.u8(0..50) == 0 {
            let name = format!("run {}", random.u8(0..10));
            writer.phase(&name).unwrap();
            trace.phases.push(Phase { name, first: number });
        }
        let event = any_event(&mut random, at);
        writer.event(&event).unwrap();
        trace.events.push(event);
        if random.u8(0..10) == 0 {
            let lost = random.u64(1..1000);
            writer.lost(lost).unwrap();
            trace.lost += lost;
        }
    }
    let totals = writer.end().unwrap();
    let requests = trace.events.iter().filter(|event| event.kind != Kind::Present).count();
    assert_eq!((totals.requests, totals.lost), (requests as u64, trace.lost));
    (trace, text)
}

fn read_bytes(folder: &Path, bytes: &[u8]) -> anyhow::Result<Trace> {
    let path = folder.join("trace");
    std::fs::write(&path, bytes)?;
    read(&path)
}

#[test]
fn what_was_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for seed in 0..8 {
        let (trace, text) = any_trace(seed, 300);
        assert_eq!(read_bytes(folder.path(), &text).unwrap(), trace);
        let packed = zstd::encode_all(&text[..], 1).unwrap();
        assert_eq!(read_bytes(folder.path(), &packed).unwrap(), trace);
    }
}

#[test]
fn what_a_cut_leaves_is_read_and_said_to_be_a_part() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, text) = any_trace(7, 24);
    let first_event = text.windows(2).enumerate().filter(|(_, it)| it[0] == b'\n').nth(2);
    let first_event = first_event.unwrap().0;
    for length in 0..text.len() {
        match read_bytes(folder.path(), &text[..length]) {
            Err(error) => assert!(length <= first_event, "{length}: {error:#}"),
            Ok(part) => {
                assert!(part.is_cut, "{length}");
                assert_eq!(
                    part.warnings().last().unwrap(),
                    "its end is missing; what there is of it is used"
                );
                let lines = text[..length].iter().filter(|byte| **byte == b'\n').count();
                assert!(part.events.len() <= lines);
                assert_eq!(part.events[..], trace.events[..part.events.len()]);
            }
        }
    }
}

/// The recorder begins a frame each second, so that a cut loses no more than the last one.
#[test]
fn a_cut_in_a_frame_costs_no_frame_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, text) = any_trace(3, 80);
    let lines: Vec<_> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let mut packed = Vec::new();
    let mut ends = Vec::new();
    for lines in lines.chunks(25) {
        let mut frame = zstd::Encoder::new(&mut packed, 1).unwrap();
        frame.write_all(&lines.concat()).unwrap();
        frame.finish().unwrap();
        let events = lines.concat();
        let is_event = |line: &&str| !line.starts_with('#') && !line.starts_with("timestamp");
        let events = std::str::from_utf8(&events).unwrap().lines().filter(is_event).count();
        ends.push((packed.len(), ends.last().map_or(0, |(_, before)| *before) + events));
    }
    for length in ends[0].0..packed.len() {
        let part = read_bytes(folder.path(), &packed[..length]).unwrap();
        let whole_frames = ends.iter().rfind(|(end, _)| *end <= length).unwrap().1;
        assert!(part.is_cut && part.events.len() >= whole_frames, "{length}");
        assert_eq!(part.events[..], trace.events[..part.events.len()]);
    }
}

#[test]
fn other_programs_tables_may_have_columns_and_remarks_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let text = "#size=x\n# lost=3\n0,R,0,8192,host1,99\n1.5,W,4096,1,host1,98\n2,F,0,0";
    let trace = read_bytes(folder.path(), text.as_bytes()).unwrap();
    assert_eq!((trace.events.len(), trace.end()), (3, 8192));
    assert!(trace.events.iter().all(|event| event.class.is_none() && !event.durable));
    assert_eq!((trace.size, trace.warnings()), (None, vec![]));
}
