//! Reports of a disk: its requests by class, and its structures.

use flowstone_block::{Class, SECTOR_BYTES};
use serde::Serialize;

use crate::counters::ClassCount;
use crate::layer::DiskClasses;
use crate::layout::Found;
use crate::verdict::Rule;

/// Reads and writes by class, and by the rule that decided.
#[derive(Serialize)]
pub struct ClassesReport {
    journal: ClassCount,
    metadata: ClassCount,
    data: ClassCount,
    rules: RulesReport,
}

#[derive(Serialize)]
struct RulesReport {
    layout: u64,
    hint: u64,
    journal: u64,
    header: u64,
    pattern: u64,
    none: u64,
}

impl ClassesReport {
    /// Makes the report of the counts so far.
    pub fn of(disk: &DiskClasses) -> Self {
        let counters = disk.counters();
        Self {
            journal: counters.of_class(Class::Journal),
            metadata: counters.of_class(Class::Metadata),
            data: counters.of_class(Class::Data),
            rules: RulesReport {
                layout: counters.of_rule(Rule::Layout),
                hint: counters.of_rule(Rule::Hint),
                journal: counters.of_rule(Rule::Journal),
                header: counters.of_rule(Rule::Header),
                pattern: counters.of_rule(Rule::Pattern),
                none: counters.of_rule(Rule::None),
            },
        }
    }
}

/// The recognised structures of a disk.
#[derive(Serialize)]
pub struct LayoutReport {
    /// Number of times that the disk's structures have been read.
    readings: u64,
    /// Ranges that have a class.
    regions: usize,
    /// Some regions are missing; they count as data.
    truncated: bool,
    found: Vec<FoundReport>,
}

#[derive(Serialize)]
struct FoundReport {
    kind: &'static str,
    depth: u8,
    start_lba: u64,
    bytes: u64,
    label: String,
    journal_bytes: u64,
    metadata_bytes: u64,
}

impl LayoutReport {
    /// Makes the report of the current layout.
    pub fn of(disk: &DiskClasses) -> Self {
        let layout = disk.layout();
        Self {
            readings: disk.readings(),
            regions: layout.regions(),
            truncated: layout.is_truncated(),
            found: layout.found().iter().map(FoundReport::from).collect(),
        }
    }
}

impl From<&Found> for FoundReport {
    fn from(found: &Found) -> Self {
        Self {
            kind: found.kind,
            depth: found.depth,
            start_lba: found.start / SECTOR_BYTES,
            bytes: found.bytes,
            label: found.label.clone(),
            journal_bytes: found.journal_bytes,
            metadata_bytes: found.metadata_bytes,
        }
    }
}
