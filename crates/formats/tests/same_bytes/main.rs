//! The same requests do the same to the file, in the same order: what an image of each format does
//! is listed, and the list compared with the committed one.
//!
//! A list changes only on purpose: docs/testing.md says how to accept a change.

#![allow(clippy::unwrap_used)]

mod guest;
mod host;

use std::fs;
use std::path::Path;

use flowstone_block::Outcome;
use flowstone_fileio::{Access, FileIo};
use flowstone_formats::{CreateOptions, create_in};
use flowstone_image::{DiscardMode, Format, Image, Tell, Upkeep};
use flowstone_log::{CopyMemory, LogImage, LogOptions, ResortLimit, Streams, UpkeepOptions};
use flowstone_log_format::{BLOCK_BYTES, SLOTS, SUPERBLOCK_AREA_BYTES, Superblock};
use flowstone_qcow2::{Qcow2Image, Qcow2Options};
use flowstone_raw::RawImage;
use flowstone_sim::SimDisk;

use guest::{Guest, Step, discard, flush, read, write, zeroes};
use host::Host;

/// Bytes of the disks.
const DISK_BYTES: u64 = 2 << 20;

/// An image that was created on a host of its own.
fn created(format: Format, options: &CreateOptions) -> Host {
    let bytes = if format == Format::Log { SUPERBLOCK_AREA_BYTES } else { 0 };
    let disk = SimDisk::new(bytes);
    create_in("new", &disk, format, DISK_BYTES, options).unwrap();
    if format == Format::Log {
        fix_identity(&disk);
    }
    let host = Host::new(&disk);
    host.list_contents();
    host
}

/// Replaces the random identity of a new log image.
fn fix_identity(disk: &SimDisk) {
    let mut block = [0; BLOCK_BYTES];
    for slot in SLOTS {
        let offset = u64::from(slot.get()) * BLOCK_BYTES as u64;
        disk.read_at(offset, &mut block);
        if let Ok(superblock) = Superblock::decode(&block) {
            let fixed = Superblock { identity: *b"a fixed identity", ..superblock };
            disk.write_at(offset, &fixed.encode());
        }
    }
}

/// Requests of every kind and several sizes, alone and together, over each other.
fn all_kinds() -> Vec<Step> {
    let one = |ask| Step::Ask(vec![ask]);
    vec![
        one(write(0, 8)),
        one(write(8, 64)),
        one(flush()),
        one(write(3, 1)),
        one(write(60, 13)),
        one(write(100, 300).metadata()),
        Step::Ask(vec![write(512, 8), write(520, 8).metadata(), write(1000, 24), flush()]),
        one(write(1024, 16).durable()),
        one(read(0, 128)),
        Step::Ask(vec![write(2048, 3), write(2050, 7), read(2040, 24), write(2048, 16)]),
        one(discard(16, 32)),
        one(discard(105, 200)),
        one(zeroes(520, 8, false)),
        one(zeroes(1001, 11, true)),
        one(zeroes(1536, 512, true)),
        one(flush()),
        Step::Ask(vec![write(16, 8), discard(16, 8), write(20, 2), flush()]),
        one(write(4088, 8)),
        one(write(4095, 1).metadata()),
        one(read(0, 2048)),
        one(read(2048, 2048)),
        one(flush()),
    ]
}

/// Overwrites of a disk that they fill, with a flush, a discard and a rest from time to time.
fn churn(count: u64) -> Vec<Step> {
    let mut random = 7_u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    let blocks = DISK_BYTES / BLOCK_BYTES as u64;
    let mut steps = Vec::new();
    for turn in 0..count {
        let asks = (0..4).map(|number| {
            let length = 1 + below(16);
            // Half of the disk is written much more often than the rest.
            let most = if number < 3 { blocks / 2 } else { blocks } - length;
            let ask = write(below(most) * 8, length * 8);
            if below(4) == 0 { ask.metadata() } else { ask }
        });
        steps.push(Step::Ask(asks.collect()));
        steps.push(Step::Settle);
        match turn % 16 {
            5 => steps.push(Step::Ask(vec![flush()])),
            9 => steps.push(Step::Ask(vec![discard(below(blocks / 2) * 8, 512)])),
            13 => steps.push(Step::Rest),
            _ => {}
        }
    }
    steps
}

/// How the use of an image ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    /// Like that of a process that is killed.
    Killed,
}

fn serve(host: &Host, image: &dyn Image, upkeep: &mut dyn Upkeep, steps: &[Step]) {
    host.list("opened");
    Guest::new(image, upkeep, host).run(steps);
}

/// Closes an image; `run` does what its maintenance worker does when it is told to stop.
fn close(host: &Host, image: &dyn Image, run: impl FnOnce() -> Outcome) {
    host.list("close");
    image.close().unwrap();
    run().unwrap();
    host.list_contents();
}

fn file(host: &Host) -> Box<dyn FileIo> {
    Box::new(host.clone())
}

/// Compares a list with the committed one, line by line.
fn compare(name: &str, host: &Host) {
    let listing = host.listing();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/same_bytes/listings").join(name);
    if std::env::var_os("FLOWSTONE_ACCEPT").is_some() {
        return fs::write(path, listing).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    if listing == committed {
        return;
    }
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&made, &listing).unwrap();
    let same = listing.lines().zip(committed.lines()).take_while(|(is, was)| is == was).count();
    let heading = committed.lines().take(same).filter(|line| !line.starts_with(' ')).last();
    panic!(
        "{name}: line {} is {:?} and was {:?}, after {:?}; see: diff {} {}",
        same + 1,
        listing.lines().nth(same),
        committed.lines().nth(same),
        heading,
        path.display(),
        made.display(),
    );
}

#[test]
fn a_raw_image() {
    let host = created(Format::Raw, &CreateOptions::default());
    let mode = DiscardMode::Deallocate;
    let image = RawImage::open(Path::new("raw"), file(&host), mode, Access::Write).unwrap();
    serve(&host, &image, &mut *image.upkeep(), &all_kinds());
    close(&host, &image, || Ok(()));
    compare("raw.txt", &host);
}

fn serve_qcow2(host: &Host, steps: &[Step], end: End) {
    let (path, mode) = (Path::new("qcow2"), DiscardMode::Deallocate);
    let (image, mut upkeep) = Qcow2Image::open_stepped(path, file(host), mode).unwrap();
    serve(host, &image, &mut upkeep, steps);
    if end == End::Closed {
        close(host, &image, || upkeep.run());
    }
}

#[test]
fn a_qcow2_image() {
    let qcow2 = Qcow2Options { cluster_bytes: Some(4096), ..Qcow2Options::default() };
    let host = created(Format::Qcow2, &CreateOptions { qcow2, ..CreateOptions::default() });
    serve_qcow2(&host, &all_kinds(), End::Closed);
    serve_qcow2(&host, &churn(20), End::Killed);
    serve_qcow2(&host, &all_kinds(), End::Closed);
    compare("qcow2.txt", &host);
}

fn log_image(streams: Streams) -> Host {
    let segment_bytes = Some(256 << 10);
    let log = LogOptions { segment_bytes, streams, ..LogOptions::default() };
    created(Format::Log, &CreateOptions { log, ..CreateOptions::default() })
}

fn serve_log(host: &Host, tell: Tell, steps: &[Step], end: End) {
    let mode = DiscardMode::Deallocate;
    let (image, mut upkeep) = LogImage::open_stepped("log".into(), file(host), mode, None).unwrap();
    let (resort, copy_memory) = (ResortLimit::Off, CopyMemory::default());
    let options =
        UpkeepOptions { resort, tell, copy_memory, age_power: None, copy_lifetimes: None };
    image.set_upkeep(options);
    serve(host, &image, &mut upkeep, steps);
    if end == End::Closed {
        close(host, &image, || upkeep.run());
    }
}

/// Without a turn of its upkeep that the requests do not wait for.
#[test]
fn a_log_image_of_one_stream() {
    let host = log_image(Streams::One);
    serve_log(&host, Tell::Auto, &all_kinds(), End::Closed);
    compare("log-one-stream.txt", &host);
}

#[test]
fn a_log_image_of_two_streams() {
    let host = log_image(Streams::Class);
    serve_log(&host, Tell::Auto, &all_kinds(), End::Closed);
    compare("log-two-streams.txt", &host);
}

/// With checkpoints, cleaning, and dead segments that are told to the host; killed in the middle.
#[test]
fn a_log_image_that_is_cleaned() {
    for (streams, name) in
        [(Streams::One, "log-one-cleaned.txt"), (Streams::Class, "log-two-cleaned.txt")]
    {
        let host = log_image(streams);
        serve_log(&host, Tell::Auto, &churn(40), End::Killed);
        serve_log(&host, Tell::Always, &churn(20), End::Closed);
        compare(name, &host);
    }
}
