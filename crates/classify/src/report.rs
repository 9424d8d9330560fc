//! Reports of a disk: its requests by class, and its structures.

use std::collections::BTreeMap;

use flowstone_block::Class;
use serde::Serialize;

use crate::counters::ClassCount;
use crate::layer::DiskClasses;
use crate::layout::Found;
use crate::verdict::Rule;

/// Reads and writes by class, and by the rule that decided.
#[derive(Serialize)]
pub struct ClassesReport {
    #[serde(flatten)]
    classes: BTreeMap<&'static str, ClassCount>,
    rules: BTreeMap<&'static str, u64>,
}

impl ClassesReport {
    /// Makes the report of the counts so far.
    pub fn of(disk: &DiskClasses) -> Self {
        Self {
            classes: Class::ALL.map(|it| (it.name(), disk.of_class(it))).into(),
            rules: Rule::ALL.map(|it| (it.name(), disk.of_rule(it))).into(),
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
    found: Vec<Found>,
}

impl LayoutReport {
    /// Makes the report of the current layout.
    pub fn of(disk: &DiskClasses) -> Self {
        let layout = disk.layout();
        Self {
            readings: disk.readings(),
            regions: layout.regions(),
            truncated: layout.is_truncated(),
            found: layout.found().to_vec(),
        }
    }
}
