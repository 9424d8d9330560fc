//! Checks a log image, also one too damaged to open: superblocks, map and replay as opening reads
//! them, then every mapped block against the record that should hold it, the use of segments, and
//! optionally all data against its checksums.
//!
//! Memory is 9 bytes per mapped block besides the map, and time is bounded by the allocated part of
//! the file: holes are skipped, and no block is read more than a few times.

mod claims;
mod repair;
mod scan;
mod walk;

#[cfg(test)]
mod tests;

use std::fmt::Display;

use flowstone_block::{Error, Result, SECTOR_BYTES};
use flowstone_fileio::FileIo;
use flowstone_image::{CheckProgress, CheckReport};
use flowstone_log_format::{
    BLOCK_BYTES, LeafPlace, MapEntry, Superblock, SuperblockError, blocks_of_sectors, lost_slot,
    newest,
};
use flowstone_log_store::Reader;
use flowstone_log_store::segments::State;

use self::claims::Claims;
use self::scan::Evidence;
use self::walk::Walk;
use super::load::{Loaded, load_from};
use super::refusal::LoadError;
use super::slots::read_slots;
use super::volume::map::LEAF_BLOCKS;

pub use self::repair::repair;

/// Free segments for which an image may keep host space, besides those for a checkpoint of the
/// whole map: it had them ready when it was closed.
const READY_MAX: u64 = 12;

/// Checks an image. `tells_space` says whether the host reports the allocated parts of the file.
pub fn check(
    name: &str,
    file: &dyn FileIo,
    data: bool,
    tells_space: bool,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    Ok(Examination::of(name, file, data, tells_space, progress)?.findings.report)
}

/// The report about the image `name`.
struct Findings<'a> {
    name: &'a str,
    report: CheckReport,
}

impl Findings<'_> {
    fn error(&mut self, what: impl Display) {
        self.report.error(format!("{}: {what}", self.name));
    }

    /// Adds an error of a block that the map has.
    fn block_error(&mut self, lba: u64, map_entry: MapEntry, what: impl Display) {
        let (byte, offset) = (lba * BLOCK_BYTES as u64, map_entry.address().offset().get());
        self.error(format!("LBA {lba} (guest byte {byte}) at file offset {offset}: {what}"));
    }
}

/// Findings, as a report and, for repair, as data.
struct Examination<'a> {
    findings: Findings<'a>,
    /// The superblock that was lost, `A` or `B`.
    lost_slot: Option<char>,
    /// Whether the remaining superblock is provably the newest that ever existed.
    newest_for_sure: bool,
    /// The image, as far as it could be read.
    loaded: Option<Loaded>,
    /// Number of unreadable leaves: the map has gaps.
    bad_leaves: u64,
    /// Records behind the end of the log; gathered when something is missing.
    evidence: Option<Evidence>,
}

impl<'a> Examination<'a> {
    fn of(
        name: &'a str,
        file: &dyn FileIo,
        data: bool,
        tells_space: bool,
        progress: CheckProgress<'_>,
    ) -> Result<Self> {
        let mut found = Self {
            findings: Findings { name, report: CheckReport::default() },
            lost_slot: None,
            newest_for_sure: true,
            loaded: None,
            bad_leaves: 0,
            evidence: None,
        };
        let slots = read_slots(file).map_err(|error| error.explain(name))?;
        let superblock = match newest(&slots) {
            Ok(superblock) => superblock.clone(),
            Err(SuperblockError::Damaged(why)) => {
                found.findings.error(format!("{why}; nothing else can be checked"));
                return Ok(found);
            }
            Err(error) => return Err(LoadError::from(error).explain(name)),
        };
        found.lost_slot = lost_slot(&slots);
        found.load(file, &superblock);
        if found.lost_slot.is_some() || found.is_cut_off() {
            found.look_behind(file, &superblock)?;
        }
        if let Some(loaded) = &found.loaded {
            found.findings.report.data_bytes = loaded.map.mapped() * BLOCK_BYTES as u64;
            note_state(loaded, &mut found.findings.report);
            check_blocks(file, loaded, data, &mut found.findings, progress)?;
            if found.bad_leaves == 0 {
                check_space(file, loaded, tells_space, &mut found.findings)?;
            }
        }
        Ok(found)
    }

    /// Returns whether replay stopped before the end of the log.
    fn is_cut_off(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.replay.damage.is_some())
    }

    fn load(&mut self, file: &dyn FileIo, superblock: &Superblock) {
        let Self { findings, bad_leaves, .. } = self;
        let loaded = load_from(file, superblock.clone(), None, |place, error| {
            *bad_leaves += 1;
            findings.error(format!("{}: {}", leaf_name(place), words(&error)));
            Ok(())
        });
        match loaded {
            Ok(loaded) => {
                if let Some(damage) = &loaded.replay.damage {
                    findings.error(&damage.what);
                }
                self.loaded = Some(loaded);
            }
            Err(error) => {
                findings.error(format!("{}; its blocks cannot be checked", words(&error)));
            }
        }
    }

    /// When something is missing: scans the whole file for evidence of it.
    fn look_behind(&mut self, file: &dyn FileIo, superblock: &Superblock) -> Result<()> {
        let end = self
            .loaded
            .as_ref()
            .map_or(superblock.next_sequence, |loaded| loaded.replay.next_sequence);
        let evidence = Evidence::gather(file, superblock, end)
            .map_err(|errno| LoadError::Host(errno).explain(self.findings.name))?;
        if let Some(slot) = self.lost_slot {
            self.newest_for_sure = evidence.proves_newest(superblock);
            let verdict = if self.newest_for_sure {
                "the other one is the newest, and nothing is lost"
            } else {
                "it may have been the newer one: then writes are lost with it"
            };
            self.findings.error(format!("superblock {slot} is damaged; {verdict}"));
        }
        self.evidence = Some(evidence);
        Ok(())
    }
}

fn leaf_name(place: &LeafPlace) -> String {
    let first = u64::from(place.leaf) * LEAF_BLOCKS;
    let last = first + LEAF_BLOCKS - 1;
    format!(
        "LBAs {first} to {last} (guest bytes from {}), map leaf {} at file offset {}",
        first * BLOCK_BYTES as u64,
        place.leaf,
        place.address.offset().get(),
    )
}

fn words(error: &LoadError) -> String {
    match error {
        LoadError::Foreign => "it is not a log image".into(),
        LoadError::Unsupported(why) => why.clone(),
        LoadError::Damaged(flaw) => flaw.what.clone(),
        LoadError::Host(errno) => format!("it cannot be read: {errno}"),
    }
}

fn note_state(loaded: &Loaded, report: &mut CheckReport) {
    if !loaded.superblock.clean {
        let records = loaded.replay.records;
        report.notes.push(format!(
            "it was not closed; the next start replays {records} records after the checkpoint"
        ));
    }
    let features = loaded.superblock.readonly_features();
    if features != 0 {
        report.notes.push(format!("it uses features {features:#x} that this version only reads"));
    }
}

/// Checks every mapped block, leaf and root against the record that should hold it.
fn check_blocks(
    file: &dyn FileIo,
    loaded: &Loaded,
    data: bool,
    findings: &mut Findings<'_>,
    progress: CheckProgress<'_>,
) -> Result<()> {
    let reader =
        Reader::open(file).map_err(|errno| LoadError::Host(errno).explain(findings.name))?;
    let mut claims = Claims::of(loaded);
    claims.report_conflicts(loaded, findings);
    let entries = Vec::new();
    let mut walk = Walk { reader, loaded, claims: &mut claims, data, findings, entries };
    walk.run(progress);
    walk.report_unfound();
    Ok(())
}

/// Some file systems count their own metadata as space of the file: F2FS takes a block for each
/// 1018 of the file's.
const HOST_MAP_PART: u64 = 512;
const HOST_MAP_LEAST: u64 = 64 << 10;

/// Checks the use of segments, and counts allocated host space that is not in use.
fn check_space(
    file: &dyn FileIo,
    loaded: &Loaded,
    tells_space: bool,
    findings: &mut Findings<'_>,
) -> Result<()> {
    for (number, segment) in loaded.segments.iter() {
        if segment.live > 0 && segment.incarnation.is_none() {
            let offset = loaded.shape.address(number, 0).offset().get();
            findings.error(format!(
                "segment {number} at file offset {offset} holds {} live blocks, and the map root \
                 does not name it",
                segment.live
            ));
        }
    }
    let Superblock { clean, capacity_sectors, .. } = loaded.superblock;
    let (counted, live) = (loaded.superblock.totals.live_blocks, loaded.map.mapped());
    if !clean {
        // Deallocation of freed space may have been interrupted.
        return Ok(());
    }
    if counted != live {
        let size = capacity_sectors * SECTOR_BYTES;
        findings.error(format!(
            "of {size} bytes, the superblock counts {counted} live blocks, the map {live}"
        ));
    }
    if tells_space {
        let allocated = file
            .allocated_bytes()
            .map_err(|error| Error::host(findings.name, error, "check the host"))?;
        let holds = |state| matches!(state, State::Open | State::Sealed | State::Dead);
        let used = loaded.segments.iter().filter(|(_, it)| holds(it.state)).count() as u64;
        let leaves = blocks_of_sectors(capacity_sectors).div_ceil(LEAF_BLOCKS);
        let root = u64::from(loaded.superblock.root.blocks);
        let for_checkpoints = loaded.shape.checkpoint_segments(leaves, root);
        // Plus one for the superblocks' segment.
        let segments = (used + 1 + READY_MAX + for_checkpoints) * loaded.shape.segment_bytes();
        let explained = segments + segments / HOST_MAP_PART + HOST_MAP_LEAST;
        findings.report.leaked_bytes = allocated.saturating_sub(explained);
    }
    Ok(())
}
