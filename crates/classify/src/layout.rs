//! The layout of a disk, from its on-disk structures: the sectors of journals and of metadata at
//! fixed places, the ranges of recognised file systems, and the ranges whose change invalidates it.

mod journals;
mod ranges;
mod trees;

use std::ops::Range;

use flowstone_block::{Class, Extent, SECTOR_BYTES, mutated};
use serde::{Serialize, Serializer};

pub use self::trees::Nodes;

use self::journals::Journals;
use self::ranges::{Region, contains, joined, merged, sectors, whole_sectors};
use self::trees::Trees;
use crate::listed::journal::{Journal, Kind};
use crate::volume::Volume;

/// The most regions of a layout, 24 bytes each. A file system of 16 TiB with flex_bg has about
/// 8,000.
const REGIONS_MAX: usize = 64 << 10;
/// The most definers: ranges of which a completed write makes the layout be read again.
const DEFINERS_MAX: usize = 1024;
/// The most structures reported as found.
const FOUND_MAX: usize = 256;
/// The most characters of a label that are kept.
const LABEL_CHARS_MAX: usize = 128;
/// The most logical volumes of a disk.
const VOLUMES_MAX: usize = 256;
/// The most steps to make a layout: a step is a group visited, or a piece of a volume that a range
/// is on. 64 TiB of ext4 take 2 million.
const STEPS_MAX: u64 = 4 << 20;
/// The most journals whose lists are read, and the most pieces of one of them.
const JOURNALS_MAX: usize = 64;
const JOURNAL_PIECES_MAX: usize = 1024;
/// The most pieces of file systems whose metadata has headers.
const TREES_MAX: usize = 4096;
/// The beginning of a volume identifies its content: boot sector, labels and superblocks.
const BEGINNING_BYTES: u64 = 8192;
/// Offset of the superblock of btrfs, which is not at the beginning.
pub const BTRFS_AT: u64 = 64 << 10;

/// The place of a request in the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Entirely in a journal.
    Journal,
    /// Entirely in metadata at a fixed place.
    Metadata,
    /// Elsewhere in a recognised file system.
    FileSystem,
    /// Outside of recognised file systems.
    Unknown,
}

/// A recognised structure of a disk: its JSON is stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its type, such as `ext4`.
    pub kind: &'static str,
    /// Its nesting depth: 0 for the whole disk, 1 for the content of a partition.
    pub depth: u8,
    /// Its start on the disk, in bytes.
    #[serde(rename = "start_lba", serialize_with = "in_sectors")]
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its label, or empty. Chosen by the guest.
    pub label: String,
    /// Bytes of its journal.
    pub journal_bytes: u64,
    /// Bytes of its metadata at fixed places.
    pub metadata_bytes: u64,
}

fn in_sectors<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes / SECTOR_BYTES)
}

/// The layout of a disk at one time. It is immutable: a newer one replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Sorted by start, without overlaps; regions of the same class do not touch.
    regions: Box<[Region]>,
    /// Recognised file systems, sorted and disjoint.
    file_systems: Box<[Range<u64>]>,
    /// Definers, sorted and disjoint.
    definers: Box<[Range<u64>]>,
    journals: Journals,
    trees: Trees,
    found: Box<[Found]>,
    truncated: bool,
}

impl Default for Layout {
    /// Returns the layout of an unread disk. A write to its beginning makes it be read.
    fn default() -> Self {
        Self {
            regions: Box::default(),
            file_systems: Box::default(),
            definers: Box::new([sectors(0..BEGINNING_BYTES)]),
            journals: Journals::default(),
            trees: Trees::default(),
            found: Box::default(),
            truncated: false,
        }
    }
}

impl Layout {
    /// Returns the place of a request for `extent`.
    #[inline]
    pub fn place(&self, extent: Extent) -> Place {
        let (start, end) = (extent.start().get(), extent.end().get());
        let next = self.regions.partition_point(|region| region.end <= start);
        match self.regions.get(next) {
            Some(region) if region.start <= start && end <= region.end => match region.class {
                Class::Journal => Place::Journal,
                Class::Metadata => Place::Metadata,
                Class::Data => Place::FileSystem,
            },
            _ if contains(&self.file_systems, start, end) => Place::FileSystem,
            _ => Place::Unknown,
        }
    }

    /// Returns whether a change of `extent` may change the layout.
    #[inline]
    pub fn is_defined_by(&self, extent: Extent) -> bool {
        let next = self.definers.partition_point(|range| range.end <= extent.start().get());
        self.definers.get(next).is_some_and(|range| range.start < extent.end().get())
    }

    /// Returns whether both have the same definers.
    pub fn has_definers_of(&self, other: &Self) -> bool {
        self.definers == other.definers
    }

    /// Returns its journals whose lists of metadata are read.
    pub(crate) fn journals(&self) -> &Journals {
        &self.journals
    }

    /// Takes over the list of blocks of an earlier layout if the journals are the same. Returns
    /// whether they are.
    pub(crate) fn keep_list_of(&mut self, before: &Self) -> bool {
        self.journals.keep_list_of(&before.journals)
    }

    /// Returns its file systems whose metadata has headers.
    pub(crate) fn trees(&self) -> &Trees {
        &self.trees
    }

    /// Returns the recognised structures.
    pub fn found(&self) -> &[Found] {
        &self.found
    }

    /// Returns the number of regions.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }

    /// Returns whether limits cut it off: missing regions count as data.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }
}

/// A layout under construction.
#[derive(Default)]
pub struct Builder {
    regions: Vec<Region>,
    file_systems: Vec<Range<u64>>,
    definers: Vec<Range<u64>>,
    journals: Vec<Journal>,
    trees: Vec<(Range<u64>, Nodes)>,
    found: Vec<Found>,
    volumes: usize,
    steps: u64,
    /// The structure found last was within [`FOUND_MAX`].
    is_reported: bool,
    /// Some limit was reached.
    truncated: bool,
    /// The limit of regions was reached for metadata: no more is added.
    is_full: bool,
    /// The limit of regions was reached for journals, too.
    is_full_of_journals: bool,
}

impl Builder {
    /// Counts some more steps. Returns `false` when there are too many: the reader is to stop.
    pub fn step(&mut self, steps: u64) -> bool {
        self.steps = self.steps.saturating_add(steps);
        self.truncated |= self.steps > STEPS_MAX;
        self.steps <= STEPS_MAX
    }

    /// Counts one more logical volume. Returns `false` when there are too many.
    pub fn volume(&mut self) -> bool {
        self.volumes += 1;
        self.truncated |= self.volumes > VOLUMES_MAX;
        self.volumes <= VOLUMES_MAX
    }

    /// Adds a byte range of `volume` with its class. Returns `false` when the reader is to stop.
    pub fn region(&mut self, volume: &Volume, range: Range<u64>, class: Class) -> bool {
        if !self.step(1) {
            return false;
        }
        let mut pieces = 0;
        volume.on_disk(range, |range| {
            pieces += 1;
            // Only whole sectors have a class.
            let (start, end) = (range.start.div_ceil(SECTOR_BYTES), range.end / SECTOR_BYTES);
            if start < end {
                self.add(Region { start, end, class });
            }
        });
        self.step(pieces)
    }

    /// Adds the file system in the first `bytes` bytes of `volume`.
    pub fn file_system(&mut self, volume: &Volume, bytes: u64) {
        volume.on_disk(0..bytes, |range| {
            if self.file_systems.len() < REGIONS_MAX {
                self.file_systems.push(sectors(range));
            } else {
                self.truncated = true;
            }
        });
    }

    /// Adds a byte range of `volume` as a definer: a write to it may change the layout.
    pub fn definer(&mut self, volume: &Volume, range: Range<u64>) {
        volume.on_disk(range, |range| {
            if self.definers.len() < DEFINERS_MAX {
                self.definers.push(sectors(range));
            } else {
                self.truncated = true;
            }
        });
    }

    /// Adds the definers of an unrecognised `volume`: a write to its beginning may change its type.
    pub fn unknown(&mut self, volume: &Volume) {
        self.beginning(volume);
        self.definer(volume, BTRFS_AT..BTRFS_AT + BEGINNING_BYTES);
    }

    /// Adds the beginning of `volume` as a definer.
    pub fn beginning(&mut self, volume: &Volume) {
        self.definer(volume, 0..BEGINNING_BYTES);
    }

    /// Adds a journal in the file system on `volume`, whose lists are to be read; its ranges are in
    /// bytes of the volume, in the journal's own order.
    pub fn journal(
        &mut self,
        volume: &Volume,
        (uuid, block_bytes): ([u8; 16], u64),
        kind: Kind,
        ranges: &[Range<u64>],
    ) {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            volume.on_disk(range.clone(), |it| {
                let it = whole_sectors(&it);
                match pieces.last_mut().filter(|last| last.end == it.start) {
                    Some(last) => last.end = it.end,
                    None => pieces.push(it),
                }
            });
            if pieces.len() > JOURNAL_PIECES_MAX {
                return;
            }
        }
        if self.journals.len() < JOURNALS_MAX && !pieces.is_empty() {
            let (volume, pieces) = (volume.clone(), pieces.into());
            self.journals.push(Journal { uuid, volume, block_bytes, kind, pieces });
        }
    }

    /// Adds the trees of the file system on `volume`, identified by `nodes`.
    pub fn trees(&mut self, volume: &Volume, nodes: Nodes) {
        volume.on_disk(0..volume.bytes(), |range| {
            if self.trees.len() < TREES_MAX {
                self.trees.push((whole_sectors(&range), nodes));
            }
        });
    }

    /// Adds a structure recognised on `volume`. The bytes of its classes are counted at the end.
    pub fn found(&mut self, kind: &'static str, volume: &Volume, depth: u8, label: &str) {
        let mut start = u64::MAX;
        volume.on_disk(0..volume.bytes(), |range| start = start.min(range.start));
        self.is_reported = self.found.len() < FOUND_MAX;
        if !self.is_reported {
            self.truncated = true;
            return;
        }
        self.found.push(Found {
            kind,
            depth,
            start,
            bytes: volume.bytes(),
            label: label.chars().take(LABEL_CHARS_MAX).collect(),
            journal_bytes: 0,
            metadata_bytes: 0,
        });
    }

    /// Adds `bytes` of a class to the structure found last.
    pub fn counted(&mut self, class: Class, bytes: u64) {
        let Some(last) = self.found.last_mut().filter(|_| self.is_reported) else { return };
        match class {
            Class::Journal => last.journal_bytes = last.journal_bytes.saturating_add(bytes),
            Class::Metadata => last.metadata_bytes = last.metadata_bytes.saturating_add(bytes),
            Class::Data => {}
        }
    }

    /// Returns whether no more metadata is added.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    fn add(&mut self, region: Region) {
        if let Some(last) = self.regions.last_mut()
            && last.class == region.class
            && last.end == region.start
        {
            last.end = region.end;
            return;
        }
        // Journals matter most, and are few in a consistent file system. Regions are merged only
        // when REGIONS_MAX have been added, so the cost of merging is small per region.
        let is_journal = region.class == Class::Journal;
        let is_apart = mutated("classify.layout.metadata-crowds-journals-out", is_journal, false);
        let (most, is_full) = match is_apart {
            true => (3 * REGIONS_MAX, &mut self.is_full_of_journals),
            false => (2 * REGIONS_MAX, &mut self.is_full),
        };
        if *is_full {
            self.truncated = true;
            return;
        }
        self.regions.push(region);
        if self.regions.len() >= most {
            self.regions = merged(std::mem::take(&mut self.regions));
            *is_full = self.regions.len() > most - REGIONS_MAX;
            self.truncated |= *is_full;
        }
    }

    /// Completes the layout.
    pub fn finish(mut self) -> Layout {
        self.finish_regions();
        if self.truncated {
            // A revocation may be written to a part of a journal that is not known.
            self.journals.clear();
        }
        Layout {
            regions: self.regions.into(),
            file_systems: joined(self.file_systems).into(),
            definers: joined(self.definers).into(),
            journals: Journals::new(self.journals),
            trees: Trees::new(self.trees),
            found: self.found.into(),
            truncated: self.truncated,
        }
    }

    fn finish_regions(&mut self) {
        self.regions = merged(std::mem::take(&mut self.regions));
        let is_too_long = self.regions.len() > REGIONS_MAX;
        let is_too_long = mutated("classify.layout.grows-without-end", is_too_long, false);
        if is_too_long {
            self.truncated = true;
            let journals = self.regions.iter().filter(|it| it.class == Class::Journal).count();
            let mut metadata_left = REGIONS_MAX.saturating_sub(journals);
            self.regions.retain(|region| {
                let stays = region.class == Class::Journal || metadata_left > 0;
                metadata_left -= usize::from(stays && region.class != Class::Journal);
                stays
            });
            self.regions.truncate(REGIONS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::{Sector, SectorCount};

    use super::*;
    use crate::volume::Piece;

    fn extent(start: u64, count: u64) -> Extent {
        Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
    }

    fn volume(disk: u64, sectors: u64) -> Volume {
        let bytes = sectors * SECTOR_BYTES;
        Volume::new([Piece { start: 0, disk: disk * SECTOR_BYTES, bytes }])
    }

    fn bytes(sectors: Range<u64>) -> Range<u64> {
        sectors.start * SECTOR_BYTES..sectors.end * SECTOR_BYTES
    }

    #[test]
    fn a_request_has_a_class_if_all_of_it_lies_there() {
        let partition = volume(100, 1000);
        let mut builder = Builder::default();
        builder.region(&partition, bytes(20..30), Class::Metadata);
        builder.region(&partition, bytes(10..20), Class::Metadata);
        builder.region(&partition, bytes(30..40), Class::Journal);
        builder.file_system(&partition, 900 * SECTOR_BYTES);
        let layout = builder.finish();
        assert_eq!(layout.regions(), 2);
        assert_eq!(layout.place(extent(115, 10)), Place::Metadata);
        assert_eq!(layout.place(extent(130, 10)), Place::Journal);
        assert_eq!(layout.place(extent(125, 10)), Place::FileSystem, "half metadata, half journal");
        assert_eq!(layout.place(extent(139, 2)), Place::FileSystem);
        assert_eq!(layout.place(extent(999, 1)), Place::FileSystem);
        assert_eq!(layout.place(extent(999, 2)), Place::Unknown);
        assert_eq!(layout.place(extent(0, 8)), Place::Unknown);
    }

    #[test]
    fn of_regions_that_overlap_the_first_one_counts() {
        let disk = volume(0, 1000);
        let mut builder = Builder::default();
        builder.region(&disk, bytes(10..30), Class::Journal);
        builder.region(&disk, bytes(15..20), Class::Metadata);
        builder.region(&disk, bytes(20..40), Class::Metadata);
        let layout = builder.finish();
        assert_eq!(layout.place(extent(15, 10)), Place::Journal);
        assert_eq!(layout.place(extent(30, 10)), Place::Metadata);
    }

    #[test]
    fn a_sector_that_holds_a_bit_of_a_definer_defines() {
        let disk = volume(64, 1000);
        let mut builder = Builder::default();
        builder.definer(&disk, 1024..2047);
        let layout = builder.finish();
        assert!(layout.is_defined_by(extent(67, 1)));
        assert!(layout.is_defined_by(extent(0, 1000)));
        assert!(!layout.is_defined_by(extent(0, 66)));
        assert!(!layout.is_defined_by(extent(68, 8)));
    }

    #[test]
    fn a_layout_holds_so_many_regions_and_says_if_there_are_more() {
        let disk = volume(0, u64::MAX / SECTOR_BYTES);
        let mut builder = Builder::default();
        for at in 0..2 * REGIONS_MAX as u64 + 10 {
            builder.region(&disk, bytes(2 * at..2 * at + 1), Class::Metadata);
        }
        assert!(builder.is_full());
        let layout = builder.finish();
        assert_eq!(layout.regions(), REGIONS_MAX);
        assert!(layout.is_truncated());
        assert_eq!(layout.place(extent(0, 1)), Place::Metadata);
    }

    /// Each further region of a journal caused a merge of all regions: hours for a forged disk.
    #[test]
    fn journals_of_more_regions_than_there_may_be_are_cut_off() {
        let disk = volume(0, u64::MAX / SECTOR_BYTES);
        let mut builder = Builder::default();
        for at in 0..20 * REGIONS_MAX as u64 {
            builder.region(&disk, bytes(2 * at..2 * at + 1), Class::Journal);
        }
        let layout = builder.finish();
        assert_eq!((layout.regions(), layout.is_truncated()), (REGIONS_MAX, true));
        assert_eq!(layout.place(extent(0, 1)), Place::Journal);
    }

    /// The descriptors of a file system are cut off, and the journal of the next one is not.
    #[test]
    fn a_journal_is_taken_when_there_is_no_room_for_metadata() {
        let disk = volume(0, u64::MAX / SECTOR_BYTES);
        let mut builder = Builder::default();
        for at in 0..3 * REGIONS_MAX as u64 {
            builder.region(&disk, bytes(2 * at..2 * at + 1), Class::Metadata);
        }
        let journal = 8 * REGIONS_MAX as u64;
        builder.region(&disk, bytes(journal..journal + 8), Class::Journal);
        let layout = builder.finish();
        assert_eq!(layout.place(extent(journal, 8)), Place::Journal);
        assert_eq!(layout.regions(), REGIONS_MAX);
    }

    #[test]
    fn many_regions_that_touch_are_few() {
        let disk = volume(0, 1 << 40);
        let mut builder = Builder::default();
        for at in 0..2 * REGIONS_MAX as u64 {
            // Every other one first, so that none touches the one before.
            let at = if at < REGIONS_MAX as u64 { 2 * at } else { 2 * at - 131_071 };
            builder.region(&disk, bytes(at..at + 1), Class::Metadata);
        }
        let layout = builder.finish();
        assert_eq!((layout.regions(), layout.is_truncated()), (1, false));
    }
}
