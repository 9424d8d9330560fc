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

use flowstone_block::{Result, SECTOR_BYTES};
use flowstone_fileio::FileIo;
use flowstone_image::{CheckProgress, CheckReport};
use flowstone_log_format::{
    BLOCK_BYTES, LeafPlace, MapEntry, Superblock, SuperblockError, blocks_of_sectors, lost_slot,
    newest,
};

use self::claims::Claims;
use self::scan::Evidence;
use self::walk::Walk;
use super::load::{Loaded, load_from};
use super::log::segments::State;
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
    Ok(Examination::of(name, file, data, tells_space, progress)?.report)
}

/// Findings, as a report and, for repair, as data.
struct Examination {
    report: CheckReport,
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

impl Examination {
    fn of(
        name: &str,
        file: &dyn FileIo,
        data: bool,
        tells_space: bool,
        progress: CheckProgress<'_>,
    ) -> Result<Self> {
        let mut found = Self {
            report: CheckReport::default(),
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
                found.report.error(format!("{name}: {why}; nothing else can be checked"));
                return Ok(found);
            }
            Err(error) => return Err(LoadError::from(error).explain(name)),
        };
        found.lost_slot = lost_slot(&slots);
        found.load(name, file, &superblock);
        if found.lost_slot.is_some() || found.is_cut_off() {
            found.look_behind(name, file, &superblock)?;
        }
        if let Some(loaded) = &found.loaded {
            found.report.data_bytes = loaded.map.mapped() * BLOCK_BYTES as u64;
            note_state(loaded, &mut found.report);
            check_blocks(name, file, loaded, data, &mut found.report, progress)?;
            if found.bad_leaves == 0 {
                check_space(name, file, loaded, tells_space, &mut found.report)?;
            }
        }
        Ok(found)
    }

    /// Returns whether replay stopped before the end of the log.
    fn is_cut_off(&self) -> bool {
        self.loaded.as_ref().is_some_and(|loaded| loaded.replay.damage.is_some())
    }

    fn load(&mut self, name: &str, file: &dyn FileIo, superblock: &Superblock) {
        let Self { report, bad_leaves, .. } = self;
        let loaded = load_from(file, superblock.clone(), None, |place, error| {
            *bad_leaves += 1;
            report.error(format!("{name}: {}: {}", leaf_name(place), words(&error)));
            Ok(())
        });
        match loaded {
            Ok(loaded) => {
                if let Some(damage) = &loaded.replay.damage {
                    report.error(format!("{name}: {}", damage.what));
                }
                self.loaded = Some(loaded);
            }
            Err(error) => {
                let why = words(&error);
                report.error(format!("{name}: {why}; its blocks cannot be checked"));
            }
        }
    }

    /// When something is missing: scans the whole file for evidence of it.
    fn look_behind(
        &mut self,
        name: &str,
        file: &dyn FileIo,
        superblock: &Superblock,
    ) -> Result<()> {
        let end = self
            .loaded
            .as_ref()
            .map_or(superblock.next_sequence, |loaded| loaded.replay.next_sequence);
        let evidence = Evidence::gather(file, superblock, end)
            .map_err(|errno| LoadError::Host(errno).explain(name))?;
        if let Some(slot) = self.lost_slot {
            self.newest_for_sure = evidence.proves_newest(superblock);
            let verdict = if self.newest_for_sure {
                "the other one is the newest, and nothing is lost"
            } else {
                "it may have been the newer one: then writes are lost with it"
            };
            self.report.error(format!("{name}: superblock {slot} is damaged; {verdict}"));
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

/// Names a block in messages.
fn block_name(lba: u64, map_entry: MapEntry) -> String {
    let offset = map_entry.address().offset().get();
    format!("LBA {lba} (guest byte {}) at file offset {offset}", lba * BLOCK_BYTES as u64)
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
    name: &str,
    file: &dyn FileIo,
    loaded: &Loaded,
    data: bool,
    report: &mut CheckReport,
    progress: CheckProgress<'_>,
) -> Result<()> {
    let host = |errno| LoadError::Host(errno).explain(name);
    let mut claims = Claims::of(loaded);
    claims.report_conflicts(name, loaded, report);
    let mut walk = Walk::new(name, file, loaded, &mut claims, data, report).map_err(host)?;
    walk.run(progress).map_err(host)?;
    walk.report_unfound().map_err(host)
}

/// Some file systems count their own metadata as space of the file: F2FS takes a block for each
/// 1018 of the file's.
const HOST_MAP_PART: u64 = 512;
const HOST_MAP_LEAST: u64 = 64 << 10;

/// Checks the use of segments, and counts allocated host space that is not in use.
fn check_space(
    name: &str,
    file: &dyn FileIo,
    loaded: &Loaded,
    tells_space: bool,
    report: &mut CheckReport,
) -> Result<()> {
    for (number, segment) in loaded.segments.iter() {
        if segment.live > 0 && segment.incarnation.is_none() {
            let offset = loaded.shape.address(number, 0).offset().get();
            report.error(format!(
                "{name}: segment {number} at file offset {offset} holds {} live blocks, and the \
                 map root does not name it",
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
        report.error(format!(
            "{name}: of {size} bytes, the superblock counts {counted} live blocks, the map {live}"
        ));
    }
    if tells_space {
        let allocated = file
            .allocated_bytes()
            .map_err(|error| flowstone_block::Error::host(name, error, "check the host"))?;
        let holds = |state| matches!(state, State::Open | State::Sealed | State::Dead);
        let used = loaded.segments.iter().filter(|(_, it)| holds(it.state)).count() as u64;
        let leaves = blocks_of_sectors(capacity_sectors).div_ceil(LEAF_BLOCKS);
        let root = u64::from(loaded.superblock.root.blocks);
        let for_checkpoints = loaded.shape.checkpoint_segments(leaves, root);
        // Plus one for the superblocks' segment.
        let segments = (used + 1 + READY_MAX + for_checkpoints) * loaded.shape.segment_bytes();
        let explained = segments + segments / HOST_MAP_PART + HOST_MAP_LEAST;
        report.leaked_bytes = allocated.saturating_sub(explained);
    }
    Ok(())
}
