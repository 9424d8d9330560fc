//! Resize: a longer L1 table if needed, then the header, in one sector.
//!
//! No state in memory changes before the header is durable. A failed resize is undone: the header
//! is the old one again, and the clusters of the new L1 table are freed.

use std::ops::Range;

use flowstone_block::{Errno, Outcome, SectorCount, mutated};

use super::super::header::Header;
use super::super::map::to_bytes;
use super::super::shape::HostCluster;
use super::Maintenance;

impl Maintenance {
    pub(super) fn resize(&mut self, capacity: SectorCount) -> Outcome {
        let shape = self.core.shape;
        let (disk_bytes, entries) = (capacity.bytes(), shape.l1_entries(capacity.bytes()));
        if entries <= self.header.l1_entries {
            return self.change_header(Header { disk_bytes, ..self.header.clone() });
        }
        let place = self.place_for_l1(shape.clusters(entries * 8))?;
        let (before, early) = (self.clusters_of_l1(), self.header.clone());
        let outcome = self.move_l1(&place).and_then(|()| {
            let l1_offset = shape.offset(HostCluster(place.start));
            // The commit in `move_l1` has changed it.
            let now = self.header.clone();
            let now = mutated("qcow2.resize.reverts-what-its-commit-has-changed", now, early);
            self.change_header(Header { disk_bytes, l1_offset, l1_entries: entries, ..now })
        });
        if outcome.is_ok() {
            self.core.meta().map.grow_l1(entries as usize);
        }
        // Dropped by the next commit, the first that can rely on their refcounts.
        let left = if outcome.is_ok() { before } else { place };
        self.pending.dropped.extend(left.map(HostCluster));
        outcome
    }

    fn clusters_of_l1(&self) -> Range<u64> {
        let shape = self.core.shape;
        let start = shape.host_at(self.header.l1_offset).0;
        start..start + shape.clusters(self.header.l1_entries * 8)
    }

    fn place_for_l1(&mut self, clusters: u64) -> Result<Range<u64>, Errno> {
        self.grow(clusters + self.core.room_low().min(64));
        let mut meta = self.core.meta();
        let place = meta.space.take_run(clusters).ok_or(Errno::NOSPC)?;
        meta.tables.extend(place.clone().map(HostCluster));
        Ok(place)
    }

    /// Writes the L1 table to a place that nothing names yet.
    fn move_l1(&mut self, place: &Range<u64>) -> Outcome {
        let shape = self.core.shape;
        self.pending.taken.extend(place.clone().map(HostCluster));
        // Its refcounts are durable before the header names it; and all changes of the L1 table are
        // on the medium then, and so the same in both places.
        self.commit()?;
        let mut bytes = to_bytes(self.core.meta().map.l1());
        bytes.resize(((place.end - place.start) * shape.cluster_bytes()) as usize, 0);
        let writes = mutated("qcow2.resize.header-names-unwritten-table", true, false);
        if !writes {
            return Ok(());
        }
        self.write_at(shape.offset(HostCluster(place.start)), &bytes)?;
        let syncs = mutated("qcow2.resize.header-names-unsynced-table", true, false);
        if !syncs {
            return Ok(());
        }
        self.sync()
    }

    /// Changes the header durably, or not at all.
    fn change_header(&mut self, header: Header) -> Outcome {
        let syncs = mutated("qcow2.resize.told-before-durable", true, false);
        if !syncs {
            self.header = header.clone();
            return self.write_first_sector(&header);
        }
        let believes = mutated("qcow2.resize.believes-a-failed-header", false, true);
        if believes {
            self.header = header.clone();
        }
        let outcome = self.write_header(header);
        let has_failed = outcome.is_err();
        let has_failed =
            mutated("qcow2.resize.leaves-a-header-that-may-be-either", has_failed, false);
        if has_failed {
            self.keep_header();
        }
        outcome
    }

    /// After a header could not be written or made durable: makes sure that the old one is on the
    /// medium, durably, or at least for the next daemon on this host. If the host refuses that too,
    /// commits fail until one of them has restored it.
    fn keep_header(&mut self) {
        let is_kept = match self.has_header() {
            Ok(true) => Ok(()),
            _ => self.write_header(self.header.clone()),
        };
        self.core.meta().header_in_doubt = is_kept.is_err();
        if let Err(errno) = is_kept {
            self.warn(format_args!(
                "its header can be neither changed nor kept: {errno}; flushes fail until it can"
            ));
        }
    }
}
