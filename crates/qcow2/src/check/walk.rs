//! Walks through all tables of an image.

use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno, Outcome};
use flowstone_fileio::FileOffset;

use super::super::entry::{self, COPIED, Mapping};
use super::super::map::{from_bytes, to_bytes};
use super::super::shape::HostCluster;
use super::Checker;

/// One pass, which counts references to the clusters of a window.
pub struct Walk<'checker, 'progress> {
    pub checker: &'checker mut Checker<'progress>,
    pub window: Range<u64>,
}

impl Walk<'_, '_> {
    /// Returns the number of references to each cluster of the window. The first pass also reports
    /// errors in entries. Moves `end` behind the last referenced cluster.
    pub fn run(self, end: &mut u64) -> Result<Vec<u8>, Errno> {
        let Self { checker, window } = self;
        let shape = checker.shape;
        let first_pass = window.start == 0;
        let mut counts = vec![0u8; (window.end - window.start) as usize];
        let mut count = |cluster: HostCluster| {
            *end = (*end).max(cluster.0 + 1);
            if window.contains(&cluster.0) {
                let slot = &mut counts[(cluster.0 - window.start) as usize];
                *slot = slot.saturating_add(1);
            }
        };
        count(HostCluster(0));
        let l1 = shape.host_at(checker.header.l1_offset).0;
        (l1..l1 + shape.clusters(checker.header.l1_entries * 8))
            .map(HostCluster)
            .for_each(&mut count);
        checker.refcounts.table_clusters().map(HostCluster).for_each(&mut count);
        let blocks: Vec<_> = checker.refcounts.blocks().collect();
        for (index, home) in blocks {
            match home {
                Ok(home) if checker.has(home) => count(home),
                _ if first_pass => {
                    checker.report.error(format!("refcount block {index} is nowhere"));
                }
                _ => {}
            }
        }
        let tables = checker.l1.len() as u64;
        for index in 0..checker.l1.len() {
            let raw = checker.l1[index];
            let Some(home) = entry::cluster(shape, raw).ok().flatten() else { continue };
            count(home);
            if first_pass {
                checker.check_flag(&format!("L1 entry {index}"), raw, home);
            }
            let Ok(entries) = checker.read_table(home) else {
                if first_pass {
                    checker.report.error(format!("L2 table {index} cannot be read"));
                }
                continue;
            };
            for (slot, raw) in entries.iter().enumerate() {
                let name = || format!("entry {slot} of L2 table {index}");
                let mapping = entry::decode(shape, *raw);
                for cluster in mapping.into_iter().flat_map(|it| it.hosts(shape)) {
                    if checker.has(cluster) {
                        count(cluster);
                    } else if first_pass {
                        let error = format!("{} names cluster {} of no file", name(), cluster.0);
                        checker.report.error(error);
                    }
                }
                if first_pass {
                    checker.check_entry(&name, *raw);
                }
            }
            (checker.progress)(index as u64, tables);
        }
        Ok(counts)
    }
}

impl Checker<'_> {
    /// Returns whether the file contains the cluster, or a part of it.
    fn has(&self, cluster: HostCluster) -> bool {
        cluster.0 < self.shape.clusters(self.file_bytes)
    }

    fn read_table(&mut self, home: HostCluster) -> Result<Box<[u64]>, Errno> {
        let mut bytes = AlignedBuf::zeroed(self.shape.cluster_bytes() as usize);
        self.file.read(FileOffset::new(self.shape.offset(home)), &mut bytes)?;
        Ok(from_bytes(&bytes))
    }

    fn check_entry(&mut self, name: &dyn Fn() -> String, raw: u64) {
        match entry::decode(self.shape, raw) {
            Ok(Mapping::Data { host, .. }) => {
                self.report.data_bytes += self.shape.cluster_bytes();
                self.check_flag(&name(), raw, host);
            }
            Ok(Mapping::Zero { reserved: Some(host) }) => self.check_flag(&name(), raw, host),
            Ok(Mapping::Compressed(_)) => self.report.data_bytes += self.shape.cluster_bytes(),
            Ok(Mapping::Unallocated | Mapping::Zero { reserved: None }) => {}
            Err(_) => self.report.error(format!("{} ({raw:#x}) means nothing", name())),
        }
    }

    /// Checks the COPIED flag: a cluster may be written in place if it has one user.
    fn check_flag(&mut self, name: &str, raw: u64, host: HostCluster) {
        let refcount = self.refcounts.get(&mut self.file, host).unwrap_or(0);
        if (raw & COPIED != 0) != (refcount == 1) {
            self.report.error(format!("{name} is marked wrongly: its refcount is {refcount}"));
        }
    }

    /// Corrects the COPIED flags of all entries by the refcounts. Returns the number of corrected
    /// flags.
    pub(super) fn repair_flags(&mut self) -> Result<u64, Errno> {
        let mut repaired = 0;
        for index in 0..self.l1.len() {
            let Some(home) = entry::cluster(self.shape, self.l1[index]).ok().flatten() else {
                continue;
            };
            let Ok(mut entries) = self.read_table(home) else { continue };
            let mut wrong = 0;
            for raw in &mut entries {
                let host = match entry::decode(self.shape, *raw) {
                    Ok(Mapping::Data { host, .. } | Mapping::Zero { reserved: Some(host) }) => host,
                    _ => continue,
                };
                wrong += u64::from(self.right_flag(raw, host)?);
            }
            if wrong > 0 {
                self.write(self.shape.offset(home), &to_bytes(&entries))?;
            }
            let mut raw = self.l1[index];
            if self.right_flag(&mut raw, home)? {
                self.l1[index] = raw;
                let entries = self.sector_bytes / 8;
                let first = index / entries * entries;
                let mut sector = self.l1[first..].to_vec();
                sector.resize(entries, 0);
                let offset = self.header.l1_offset + first as u64 * 8;
                self.write(offset, &to_bytes(&sector))?;
                wrong += 1;
            }
            repaired += wrong;
        }
        Ok(repaired)
    }

    /// Corrects a flag; returns whether it was wrong.
    fn right_flag(&mut self, raw: &mut u64, host: HostCluster) -> Result<bool, Errno> {
        let single = self.refcounts.get(&mut self.file, host)? == 1;
        let wrong = (*raw & COPIED != 0) != single;
        if wrong {
            *raw ^= COPIED;
        }
        Ok(wrong)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Outcome {
        let mut buffer = AlignedBuf::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        self.file.write(FileOffset::new(offset), &mut buffer)
    }
}
