//! Entry points of the fuzz targets: the decoders of a log image, and small images tampered with by
//! an attacker who recomputes checksums.

use std::iter::repeat;
use std::path::Path;
use std::sync::OnceLock;

use flowstone_block::{
    Channel, Extent, IoVec, Layer, Op, QueueContext, QueueDepth, Request, Sector, SectorCount,
};
use flowstone_fileio::{Access, FileIo};
use flowstone_image::{DiscardMode, use_it};
use flowstone_log_format::Entry;
use flowstone_sim::{Fate, SimDisk};

use crate::corrupter::Corrupter;
use crate::maintenance::Maintenance;
use crate::{LogImage, LogOptions};

pub use crate::corrupter::{Target, decode};

/// Blocks of the small image's disk.
const BLOCKS: u64 = 192;
const BLOCK_BYTES: usize = 4096;

/// State in which the small image was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Closed in order.
    Closed,
    /// As a killed daemon leaves it: with records after the checkpoint.
    Killed,
}

/// A small image with data, trims, copies and maps; its blocks hold [`content`].
pub fn small_image(left: Left) -> &'static [u8] {
    &Ready::get(left).bytes
}

fn make(left: Left) -> Vec<u8> {
    let disk = SimDisk::new(0);
    let options = LogOptions {
        segment_bytes: Some(256 << 10),
        reserve_percent: Some(3),
        ..LogOptions::default()
    };
    crate::create("small", &disk, SectorCount::new(BLOCKS * 8), options).expect("sound options");
    let mut scene = Scene::open(&disk);
    // A disk written three times over makes the cleaner run on partly dead segments.
    for round in 1..=ROUNDS {
        for (count, lba) in (0..BLOCKS).filter(|lba| is_written(*lba, round)).enumerate() {
            let mut block = content_after(lba, round);
            scene.write(lba, &mut block);
            if count % 8 == 0 {
                scene.run(Op::Flush);
            }
        }
        if round == ROUNDS / 2 {
            scene.run(Op::Discard(trimmed()));
        }
    }
    let _ = scene.maintenance.close();
    match left {
        Left::Closed => disk.to_bytes(),
        Left::Killed => kill(&disk),
    }
}

/// An image, a guest and a maintenance worker on one thread, so that the image comes out the same
/// every time.
struct Scene {
    guest: Box<dyn Channel>,
    maintenance: Maintenance,
}

impl Scene {
    fn open(disk: &SimDisk) -> Self {
        let file = Box::new(disk.clone());
        let opened =
            LogImage::open_stepped("small.flow".into(), file, DiscardMode::Deallocate, None);
        let (image, maintenance) = opened.expect("a sound image opens");
        let context = QueueContext::alone(QueueDepth(1)).expect("a reactor");
        Self { guest: image.channel(&context).expect("a channel"), maintenance }
    }

    fn write(&mut self, lba: u64, blocks: &mut [u8]) {
        let sectors = SectorCount::new(blocks.len() as u64 / 512);
        let extent = Extent::new(Sector::new(lba * 8), sectors).expect("not empty");
        self.carry_out(Op::Write(extent), blocks);
    }

    fn run(&mut self, op: Op) {
        self.carry_out(op, &mut []);
    }

    fn carry_out(&mut self, op: Op, memory: &mut [u8]) {
        let mut request = Request::new(op, 0);
        if !memory.is_empty() {
            // SAFETY: the request completes before this call returns.
            request.memory.push(unsafe { IoVec::of(memory) });
        }
        self.guest.submit(request);
        let mut done = Vec::new();
        while done.is_empty() {
            self.guest.kick();
            self.guest.reap(&mut done);
            if done.is_empty() {
                self.maintenance.step();
            }
        }
        assert!(done.iter().all(|it| it.outcome.is_ok()), "the simulated disk does not fail");
    }
}

/// Rewrites blocks until a killed daemon would have enough to replay: full segments of flushed
/// records.
fn kill(disk: &SimDisk) -> Vec<u8> {
    let mut scene = Scene::open(disk);
    for count in 0..KILL_WRITES_MAX {
        if count % 32 == 0 {
            scene.write(TRIMMED.0 + 1, &mut [5; 2 * BLOCK_BYTES]);
            scene.run(Op::Discard(trimmed()));
        }
        let lba = count * 5 % BLOCKS;
        let mut block = content(lba);
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        scene.write(lba, &mut block);
        if count % 8 == 0 {
            scene.run(Op::Flush);
            let killed = disk.to_bytes();
            if has_much_to_replay(&killed) {
                return killed;
            }
        }
    }
    panic!("a checkpoint came each time that there was much to replay");
}

const KILL_WRITES_MAX: u64 = 100_000;

/// Returns whether the log goes on well past the checkpoint and into another segment, and a later
/// record states that the middle is durable.
fn has_much_to_replay(bytes: &[u8]) -> bool {
    let records = Corrupter::new(bytes.to_vec()).replayed();
    let Some((_, last, _)) = records.last() else { return false };
    let (middle, rest) = records.split_at(records.len() / 2);
    let is_trim = |entry: &Entry| matches!(entry, Entry::Trim { .. });
    records.iter().any(|(_, _, entries)| entries.iter().any(is_trim))
        && middle.iter().any(|(_, header, _)| header.link != 0)
        && rest.iter().all(|(_, header, _)| header.link == 0)
        && rest.len() > 12
        && rest.first().is_some_and(|(_, header, _)| last.durable > header.sequence)
}

const ROUNDS: u64 = 24;
/// Blocks discarded half-way, and not written again.
const TRIMMED: (u64, u64) = (120, 140);

fn trimmed() -> Extent {
    let (start, end) = TRIMMED;
    Extent::new(Sector::new(start * 8), SectorCount::new((end - start) * 8)).expect("not empty")
}

/// Each round writes a third of the disk: some parts often, some seldom.
fn is_written(lba: u64, round: u64) -> bool {
    let trimmed = round > ROUNDS / 2 && (TRIMMED.0..TRIMMED.1).contains(&lba);
    let often = lba % 7 < 2 || (lba + round).is_multiple_of(5);
    !trimmed && (round == 1 || often)
}

fn content_after(lba: u64, round: u64) -> Vec<u8> {
    let mut block = vec![(lba ^ round) as u8; BLOCK_BYTES];
    block[..8].copy_from_slice(&lba.to_le_bytes());
    block[8..16].copy_from_slice(&round.to_le_bytes());
    block
}

/// Content of a block of the small image; zeroes if it has been discarded.
pub fn content(lba: u64) -> Vec<u8> {
    if (TRIMMED.0..TRIMMED.1).contains(&lba) {
        return vec![0; BLOCK_BYTES];
    }
    let last = (1..=ROUNDS).rev().find(|round| is_written(lba, *round));
    last.map_or(vec![0; BLOCK_BYTES], |round| content_after(lba, round))
}

/// Size of the small image's disk in blocks.
pub const fn blocks() -> u64 {
    BLOCKS
}

fn open(disk: &SimDisk) -> flowstone_block::Result<LogImage> {
    let path = Path::new("small.flow");
    LogImage::open(path, Box::new(disk.clone()), DiscardMode::Deallocate, Access::Write, None, None)
}

/// Bytes to put into a part of an image; all checksums are then recomputed.
#[derive(Clone, Debug)]
pub struct Patch {
    /// The part to change.
    pub target: Target,
    /// Offset in the part, modulo its length.
    pub at: u16,
    /// Bytes to write; at most 64 are used.
    pub bytes: Vec<u8>,
}

/// An image with a patch applied. The image must be sound.
pub fn patched(image: Vec<u8>, patch: &Patch) -> Vec<u8> {
    let mut corrupter = Corrupter::new(image);
    corrupter.patch(patch.target, usize::from(patch.at), &patch.bytes);
    corrupter.into_bytes()
}

/// A small image and the starting state of [`survive`], made once.
struct Ready {
    bytes: Vec<u8>,
    corrupter: Corrupter,
    disk: SimDisk,
}

impl Ready {
    fn get(left: Left) -> &'static Self {
        static CLOSED: OnceLock<Ready> = OnceLock::new();
        static KILLED: OnceLock<Ready> = OnceLock::new();
        let ready = if left == Left::Closed { &CLOSED } else { &KILLED };
        ready.get_or_init(|| {
            let bytes = make(left);
            let disk = SimDisk::from_bytes(&bytes);
            Self { corrupter: Corrupter::new(bytes.clone()), bytes, disk }
        })
    }

    /// A disk that holds `bytes`, which are mostly those of the small image.
    fn disk(&self, bytes: &[u8]) -> SimDisk {
        let disk = self.disk.crash_at(self.disk.now(), &mut Fate::nothing_more());
        let before = self.bytes.chunks(BLOCK_BYTES).map(Some).chain(repeat(None));
        for ((index, block), before) in bytes.chunks(BLOCK_BYTES).enumerate().zip(before) {
            if before != Some(block) {
                disk.write_at((index * BLOCK_BYTES) as u64, block);
            }
        }
        disk.set_size(bytes.len() as u64).expect("a simulated disk takes any size");
        disk
    }
}

/// Opens, uses, checks and repairs a tampered image. Whatever it holds: no panic, no endless loop,
/// and a repair leaves nothing for a second repair to do.
pub fn survive(left: Left, patches: &[Patch], length: Option<usize>) {
    let ready = Ready::get(left);
    let mut corrupter = ready.corrupter.clone();
    for patch in patches {
        corrupter.patch(
            patch.target,
            usize::from(patch.at),
            &patch.bytes[..patch.bytes.len().min(64)],
        );
    }
    let mut bytes = corrupter.into_bytes();
    if let Some(length) = length {
        bytes.truncate(length);
    }
    let _ = crate::check("small", &ready.disk(&bytes), true, true, &mut |_, _| {});
    let repaired = ready.disk(&bytes);
    let fix = || crate::repair("small", Box::new(repaired.clone()), true, true, &mut |_, _| {});
    if fix().is_ok_and(|report| !report.repairs.is_empty()) {
        let again = fix().expect("what has been repaired can be repaired again");
        assert!(again.repairs.is_empty(), "{again:?}");
    }
    if let Ok(image) = open(&ready.disk(&bytes)) {
        use_it(&image, 4000);
    }
}
