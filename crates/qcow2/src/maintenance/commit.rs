//! A commit: makes the map durable, in an order that tolerates a power cut at any time.
//!
//! 1. Refcounts of new clusters, and new tables, which nothing names yet; sync. (A new refcount
//!    block is made durable before the table that names it.) All data that the map names was
//!    written before, so this makes it durable too.
//! 2. Changed sectors of tables that are in use, and of the L1 table; sync.
//! 3. Only now are the refcounts of clusters that the tables no longer name decremented, and only
//!    when no request can be using these clusters any more are they punched and reused.
//!
//! So every entry on the medium, old or new, names a cluster whose content and refcount are
//! durable. An interrupted commit leaves refcounts that are too high: leaks.

use std::collections::HashSet;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_fileio::FileOffset;

use super::super::header::Header;
use super::super::map::{ChangedTable, SectorRun, runs_of, to_bytes};
use super::super::mark::Mark;
use super::super::redo::Redo;
use super::super::shape::{HostCluster, sector_bytes};
use super::super::space::merged;
use super::{Maintenance, Pending};

/// The changes that a commit writes.
struct Snapshot {
    epoch: u64,
    /// Position of the end of the redo file.
    redo_end: u64,
    /// Mark of the header after this commit, if it has one.
    mark: Option<Mark>,
    /// Whole tables that nothing on the medium names yet, with their clusters.
    new_tables: Vec<(HostCluster, Vec<u8>)>,
    changes: Vec<ChangedTable>,
    l1: Vec<SectorRun>,
}

impl Snapshot {
    fn has_entries(&self) -> bool {
        !self.changes.is_empty() || !self.l1.is_empty()
    }
}

/// Number of clusters that a commit can rely on for refcount blocks.
pub(super) const ROOM_FOR_BLOCKS: u64 = 32;

impl Maintenance {
    /// Makes the present map durable.
    pub(super) fn commit(&mut self) -> Outcome {
        if self.core.has_failed() {
            return Err(Errno::IO);
        }
        self.settle_header()?;
        self.give_up_a_broken_redo_file()?;
        let snapshot = match self.begin() {
            Ok(snapshot) => snapshot,
            Err(errno) => {
                self.core.meta().committing = false;
                return Err(errno);
            }
        };
        let outcome = self.write(&snapshot);
        if outcome.is_ok() {
            self.finish_commit(&snapshot);
        }
        let mut meta = self.core.meta();
        let is_written = outcome.is_ok();
        let is_written = mutated("qcow2.commit.forgets-what-it-could-not-write", is_written, true);
        for change in &snapshot.changes {
            match is_written {
                true => meta.map.written(change),
                false => meta.map.put_back(change),
            }
        }
        meta.committing = false;
        outcome
    }

    /// Finishes a commit whose snapshot is durable.
    fn finish_commit(&mut self, snapshot: &Snapshot) {
        self.pending.l1_entries.clear();
        let mark = snapshot.mark.filter(|_| snapshot.has_entries());
        self.header.autoclear = mark.map_or(self.header.autoclear, Mark::bits);
        if let Some(redo) = &mut self.core.meta().redo {
            redo.set_committed(mark.unwrap_or(redo.mark()), snapshot.redo_end);
        }
        let mut dropped = std::mem::take(&mut self.pending.dropped);
        dropped.append(&mut self.refcounts.take_left());
        self.drop_references(snapshot.epoch, dropped);
    }

    /// Takes the changes. From now on, changes are for the next commit.
    fn begin(&mut self) -> Result<Snapshot, Errno> {
        let wanted = {
            let meta = self.core.meta();
            let blocks = meta.taken.len() as u64 / self.core.shape.block_refcounts();
            let table = self.core.shape.clusters(self.refcounts.table_entries() as u64 * 16);
            meta.map.homeless().len() as u64 + blocks + table + ROOM_FOR_BLOCKS
        };
        self.grow(wanted);
        let core = std::sync::Arc::clone(&self.core);
        let mut meta = core.meta();
        meta.committing = true;
        for index in meta.map.homeless() {
            let home = HostCluster(meta.space.take(1).ok_or(Errno::NOSPC)?.start);
            meta.tables.insert(home);
            if let Some(shared) = meta.map.set_home(index, home) {
                meta.tables.remove(&shared);
                self.pending.dropped.push(shared);
            }
            self.pending.taken.push(home);
            self.pending.new_tables.insert(index);
            self.pending.l1_entries.insert(index);
        }
        self.pending.taken.append(&mut meta.taken);
        self.pending.dropped.append(&mut meta.dropped);
        meta.dead = self.dead();
        let spoilt = meta.space.take_spoilt();
        let epoch = meta.epoch;
        meta.epoch += 1;
        let redo_end = meta.redo.as_ref().map_or(0, Redo::end);
        let mark = meta.redo.as_ref().map(|redo| redo.mark().next());
        let forgets_first = mutated("qcow2.redo.forgotten-before-the-commit", false, true);
        if forgets_first {
            meta.redo.iter_mut().for_each(|redo| redo.forget_before(redo_end));
        }
        let changes = meta.map.take_changes();
        let Pending { new_tables, l1_entries, .. } = &self.pending;
        let new_tables = new_tables
            .iter()
            .map(|index| (meta.map.home(*index), meta.map.table_bytes(*index)))
            .collect();
        let sector = meta.map.sector_entries();
        let mut sectors: Vec<usize> = l1_entries.iter().map(|index| index / sector).collect();
        sectors.dedup();
        let l1 = runs_of(&sectors, |run| {
            let mut entries = meta.map.l1()[run.start * sector..].to_vec();
            entries.resize(run.len() * sector, 0);
            to_bytes(&entries)
        });
        drop(meta);
        self.limbo.push_back((epoch, merged(spoilt)));
        Ok(Snapshot { epoch, redo_end, mark, new_tables, changes, l1 })
    }

    /// Writes a snapshot. After any failure, the part that is not durable is still pending:
    /// refcounts keep their unwritten changes, new tables stay new until the first sync, and the
    /// map takes its changes back.
    fn write(&mut self, snapshot: &Snapshot) -> Outcome {
        let entries_first = mutated("qcow2.commit.writes-entries-before-refcounts", false, true);
        if entries_first {
            self.write_entries(snapshot)?;
        }
        let frees_first = mutated("qcow2.commit.frees-before-it-is-durable", false, true);
        if frees_first {
            let dropped = self.pending.dropped.clone();
            self.drop_references(0, dropped);
            self.reclaim_all();
        }
        self.write_what_nothing_names(snapshot)?;
        let entries = snapshot.has_entries();
        if self.pending.unsynced || !entries {
            let syncs = mutated("qcow2.commit.skips-first-sync", true, false);
            if syncs {
                self.sync()?;
            }
            self.pending.unsynced = false;
        }
        // The L1 table may name them from now on, even if the rest of this fails: later changes in
        // them wait for their refcounts, as in every table.
        let forgets = mutated("qcow2.commit.takes-named-tables-for-new", true, false);
        if forgets {
            self.pending.new_tables.clear();
        }
        if !entries {
            return Ok(());
        }
        self.write_entries(snapshot)?;
        let syncs = mutated("qcow2.commit.skips-second-sync", true, false);
        if !syncs {
            return Ok(());
        }
        self.sync()
    }

    /// Writes what must be durable before any entry names it.
    fn write_what_nothing_names(&mut self, snapshot: &Snapshot) -> Outcome {
        self.pending.unsynced |= !self.pending.taken.is_empty() || self.refcounts.owes();
        self.count_taken()?;
        for (home, bytes) in &snapshot.new_tables {
            self.write_at(self.core.shape.offset(*home), bytes)?;
        }
        if self.refcounts.is_changed() {
            self.write_refcounts()?;
        }
        Ok(())
    }

    /// Writes entries of tables in use, and of the L1 table; and the mark, so that copies of the
    /// image from before and after this commit can be told apart.
    fn write_entries(&mut self, snapshot: &Snapshot) -> Outcome {
        let new: HashSet<HostCluster> = snapshot.new_tables.iter().map(|(home, _)| *home).collect();
        let changed = snapshot.changes.iter().filter(|it| !new.contains(&it.home));
        let tables = changed.map(|it| (self.core.shape.offset(it.home), &it.runs));
        let header = snapshot.mark.map(|mark| {
            let header = Header { autoclear: mark.bits(), ..self.header.clone() };
            vec![SectorRun { first: 0, bytes: self.first_sector(&header) }]
        });
        let tables = tables.chain(header.iter().map(|header| (0, header)));
        let tables: Vec<_> = tables.chain([(self.header.l1_offset, &snapshot.l1)]).collect();
        self.write_runs(&tables)
    }

    /// Counts the first user of each newly used cluster.
    fn count_taken(&mut self) -> Outcome {
        let Self { core, file, refcounts, pending, .. } = self;
        refcounts.owe(pending.taken.drain(..));
        let mut take = |count| {
            let mut meta = core.meta();
            let run = meta.space.take_run(count)?;
            meta.tables.extend(run.clone().map(HostCluster));
            Some(run)
        };
        let outcome = refcounts.count_owed(file, &mut take);
        if self.refcounts.is_table_changed() {
            self.reserve();
        }
        outcome
    }

    /// Writes refcounts; then the table, if changed, after the blocks that it names are durable.
    pub(super) fn write_refcounts(&mut self) -> Outcome {
        self.refcounts.write_blocks(&mut self.file)?;
        if !self.refcounts.is_table_changed() {
            return Ok(());
        }
        let syncs = mutated("qcow2.refcounts.table-names-unsynced-block", true, false);
        if syncs {
            self.sync()?;
        }
        if self.refcounts.moved {
            return self.move_refcount_table();
        }
        self.refcounts.write_table(&mut self.file)
    }

    /// Writes the whole table to a place that nothing names yet, then the header. Until that has
    /// succeeded the old table is valid, and may be used again: nothing on the medium depends on
    /// the new one.
    fn move_refcount_table(&mut self) -> Outcome {
        let clusters = self.refcounts.table_clusters();
        let header = Header {
            refcount_table_offset: self.refcounts.table_offset,
            refcount_table_clusters: clusters.end - clusters.start,
            ..self.header.clone()
        };
        let named_first = mutated("qcow2.refcounts.header-names-unwritten-table", false, true);
        if named_first {
            self.write_header(header.clone())?;
        }
        self.refcounts.write_table(&mut self.file)?;
        let syncs = mutated("qcow2.refcounts.header-names-unsynced-table", true, false);
        if syncs {
            self.sync()?;
        }
        self.write_header(header)?;
        self.refcounts.moved = false;
        Ok(())
    }

    /// Drops references that nothing on the medium holds any more.
    fn drop_references(&mut self, epoch: u64, dropped: Vec<HostCluster>) {
        let mut free = Vec::new();
        for cluster in dropped {
            match self.refcounts.drop_one(&mut self.file, cluster) {
                Ok(true) => free.push(cluster),
                Ok(false) => {}
                Err(errno) => self.warn(format_args!("cluster {} leaks: {errno}", cluster.0)),
            }
        }
        if !free.is_empty() {
            let mut meta = self.core.meta();
            free.iter().for_each(|cluster| {
                meta.tables.remove(cluster);
            });
            drop(meta);
            self.limbo.push_back((epoch, merged(free)));
        }
    }

    /// Writes parts of tables, given by the table's offset, several at a time.
    fn write_runs(&mut self, tables: &[(u64, &Vec<SectorRun>)]) -> Outcome {
        let runs =
            || tables.iter().flat_map(|(table, runs)| runs.iter().map(move |run| (table, run)));
        let mut buffer = AlignedBuf::zeroed(runs().map(|(_, run)| run.bytes.len()).sum());
        let mut rest = &mut buffer[..];
        let (mut writes, sector_bytes) = (Vec::new(), sector_bytes(&*self.core.file));
        for (table, run) in runs() {
            let (source, others) = rest.split_at_mut(run.bytes.len());
            source.copy_from_slice(&run.bytes);
            writes.push((FileOffset::new(table + (run.first * sector_bytes) as u64), source));
            rest = others;
        }
        self.file.write_many(&mut writes)
    }

    pub(super) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Outcome {
        let mut buffer = AlignedBuf::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        self.file.write(FileOffset::new(offset), &mut buffer)
    }
}
