//! `compact`: moves data into the order of the disk, in rounds. A round copies clusters to free
//! places, and ends with a commit: only then are their old places reused. So the rules of a commit
//! suffice to survive a power cut.
//!
//! Freed places are overwritten or punched by the next round, so they are not punched before,
//! except for those that are no target, beyond a few for clusters in the way.

use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_fileio::{FileIo, FileOffset, FileOp};
use flowstone_image::is_zero;
use tracing::warn;

use super::super::entry::{self, Mapping, ZERO};
use super::super::relocation_plan::{Move, RelocationPlan};
use super::super::shape::{GuestCluster, HostCluster, Shape};
use super::super::slow_path::look;
use super::super::space::merged;
use super::Maintenance;
use super::commit::ROOM_FOR_BLOCKS;

/// Maximum bytes copied in a round. The image may temporarily take up to three times this on the
/// host.
const ROUND_BYTES: u64 = 16 << 20;
/// Minimum number of rounds, which limits the rounds of a small image.
const ROUNDS_MIN: usize = 16;
/// Maximum number of clusters in a round: this many changes fit into any map and redo file.
const ROUND_CLUSTERS_MAX: u64 = 1 << 14;
/// Minimum number of clusters in a round.
const ROUND_CLUSTERS_MIN: u64 = 8;
/// Minimum length of a contiguous piece that stays where it is: continuing a read elsewhere after
/// this length costs next to nothing, and moving it because of a new cluster in front of it would
/// cost a lot.
const PIECE_BYTES_MIN: u64 = 32 << 20;
/// Allocation unit of file systems; holes in clusters are no smaller.
const HOST_BLOCK_BYTES: usize = 4096;
/// Maximum number of tables between two clusters of one contiguous piece.
const TABLES_BETWEEN_MAX: u64 = 4;

/// A move of a round, to the cluster's target or out of the way.
struct Step {
    cluster: Move,
    to: HostCluster,
}

impl Maintenance {
    /// Puts the data of the disk in order. The image must not be in use.
    pub(super) fn compact(&mut self) -> Outcome {
        self.free_leaks()?;
        self.commit()?;
        self.reclaim_all();
        if !self.surveyed {
            warn!("{}: its map is too large to be put in order as a whole", self.core.name);
            return Ok(());
        }
        let clusters = self.movable()?;
        let mut holes = self.core.meta().space.take_holes();
        let plan = RelocationPlan::new(clusters, &mut holes);
        holes.into_iter().for_each(|hole| self.core.meta().space.give_back(hole));
        let mut work = Work::new(self, plan);
        let outcome = work.run();
        let Work { plan, mut aside, .. } = work;
        aside.extend(plan.unused());
        self.limbo.push_back((0, merged(aside)));
        self.reclaim_all();
        outcome?;
        self.release_refcounts()
    }

    /// Frees clusters that a crash has left without users.
    fn free_leaks(&mut self) -> Outcome {
        let leaks = std::mem::take(&mut self.leaks);
        for cluster in leaks.iter().cloned().flatten() {
            self.refcounts.set(&mut self.file, HostCluster(cluster), 0)?;
        }
        self.limbo.push_back((0, leaks));
        Ok(())
    }

    /// Releases refcount blocks that counted only places for clusters in the way; they may prevent
    /// the file from being truncated.
    fn release_refcounts(&mut self) -> Outcome {
        let freed = self.refcounts.release_empty(&mut self.file)?;
        if self.refcounts.is_table_changed() {
            self.commit()?;
        }
        self.core.meta().tables.retain(|cluster| !freed.contains(cluster));
        self.limbo.push_back((0, merged(freed)));
        self.reclaim_all();
        Ok(())
    }

    /// Returns the movable clusters, in the order of the disk: those with one user, the map, and
    /// not in a long contiguous piece.
    fn movable(&mut self) -> Result<Vec<Move>, Errno> {
        let shape = self.core.shape;
        let long = PIECE_BYTES_MIN.div_ceil(shape.cluster_bytes()) as usize;
        let tables = self.core.meta().map.l1().len() as u64;
        let mut moves: Vec<Move> = Vec::new();
        // Index of the first move of the current piece.
        let mut piece = 0;
        for first in (0..tables).map(|table| table * shape.l2_entries()) {
            if self.core.meta().map.is_table_empty(GuestCluster(first)) {
                continue;
            }
            for guest in (first..first + shape.l2_entries()).map(GuestCluster) {
                let Some(host) = self.own_cluster(guest)? else { continue };
                if !moves.last().is_some_and(|last| self.follows(last.from, host)) {
                    piece = end_piece(&mut moves, piece, long);
                }
                moves.push(Move { guest, from: host, to: host });
            }
        }
        end_piece(&mut moves, piece, long);
        Ok(moves)
    }

    /// Returns the host cluster of this guest cluster, if it has no other user.
    fn own_cluster(&mut self, guest: GuestCluster) -> Result<Option<HostCluster>, Errno> {
        let (meta, raw) = look(&self.core, &mut self.file, |meta| meta.map.get(guest))?;
        drop(meta);
        let host = match entry::decode(self.core.shape, raw) {
            Ok(Mapping::Data { host, ours: true }) => host,
            Ok(Mapping::Zero { reserved: Some(host) }) if raw & entry::COPIED != 0 => host,
            _ => return Ok(None),
        };
        Ok((self.refcounts.get(&mut self.file, host)? == 1).then_some(host))
    }

    /// Returns whether a cluster follows another in the file, with nothing but tables between.
    fn follows(&self, before: HostCluster, host: HostCluster) -> bool {
        let mut between = before.0 + 1..host.0;
        let near = before < host && host.0 - before.0 <= TABLES_BETWEEN_MAX + 1;
        let meta = self.core.meta();
        near && between.all(|cluster| meta.tables.contains(&HostCluster(cluster)))
    }

    /// Returns the clusters that the last commit has freed.
    fn take_freed(&mut self) -> impl Iterator<Item = HostCluster> + use<> {
        let freed = std::mem::take(&mut self.limbo);
        freed.into_iter().flat_map(|(_, runs)| runs).flatten().map(HostCluster)
    }

    /// Points the map to the copy of a cluster.
    fn rename(&mut self, step: &Step) -> Outcome {
        let (shape, guest) = (self.core.shape, step.cluster.guest);
        let (mut meta, raw) = look(&self.core, &mut self.file, |meta| meta.map.get(guest))?;
        let flags = match entry::decode(shape, raw) {
            Ok(Mapping::Zero { .. }) => ZERO,
            _ => 0,
        };
        meta.taken.push(step.to);
        meta.change(guest, entry::ours(shape, step.to) | flags);
        Ok(())
    }
}

/// Ends the piece that begins at `start`: if it is long, its clusters stay in place.
fn end_piece(moves: &mut Vec<Move>, start: usize, long: usize) -> usize {
    if moves.len() - start >= long {
        moves.truncate(start);
    }
    moves.len()
}

/// State of a compaction.
struct Work<'a> {
    maintenance: &'a mut Maintenance,
    plan: RelocationPlan,
    /// Places without users that are no cluster's target.
    aside: Vec<HostCluster>,
    /// Maximum number of clusters in a round.
    most: usize,
    buffer: AlignedBuf,
}

impl<'a> Work<'a> {
    fn new(maintenance: &'a mut Maintenance, plan: RelocationPlan) -> Self {
        let cluster_bytes = maintenance.core.shape.cluster_bytes();
        let most = ROUND_BYTES / cluster_bytes;
        let most = most.clamp(ROUND_CLUSTERS_MIN, ROUND_CLUSTERS_MAX) as usize;
        let most = most.min(plan.left().div_ceil(ROUNDS_MIN));
        let buffer = AlignedBuf::zeroed(most * cluster_bytes as usize);
        Self { maintenance, plan, aside: Vec::new(), most, buffer }
    }

    /// Runs rounds until all clusters are at their targets.
    fn run(&mut self) -> Outcome {
        let total = self.plan.left() as u64;
        self.maintenance.core.commits.inbox.set_progress(0, total);
        while self.plan.left() > 0 {
            let mut steps = self.next_round()?;
            steps.sort_unstable_by_key(|step| step.to);
            if let Err(errno) = self.copy(&steps) {
                // Nothing names the copies, but their places are not zero any more.
                self.aside.extend(steps.iter().map(|step| step.to));
                return Err(errno);
            }
            for step in &steps {
                self.maintenance.rename(step)?;
                self.plan.moved(&step.cluster, step.to);
            }
            let pins = mutated("qcow2.compact.does-not-pin-its-sources", true, false);
            if !pins {
                // Places that the next round takes, as if the map on the medium no longer named
                // them.
                for step in &steps {
                    self.plan.freed(step.cluster.from);
                }
                if self.plan.left() % 2 == 1 {
                    continue;
                }
            }
            self.maintenance.commit()?;
            self.use_freed();
            let done = total - self.plan.left() as u64;
            self.maintenance.core.commits.inbox.set_progress(done, total);
        }
        Ok(())
    }

    /// Returns the next moves: clusters whose target is free, and if these are few, some that are
    /// in the way.
    fn next_round(&mut self) -> Result<Vec<Step>, Errno> {
        let ready = self.plan.take_ready(self.most);
        let mut steps: Vec<Step> =
            ready.into_iter().map(|cluster| Step { to: cluster.to, cluster }).collect();
        if steps.len() <= self.most / 2 {
            let wanted = self.most - steps.len();
            self.maintenance.grow(wanted as u64 + ROOM_FOR_BLOCKS);
            for cluster in self.plan.take_blocking(wanted) {
                let Some(to) = self.place_aside() else { break };
                steps.push(Step { cluster, to });
            }
        }
        if steps.is_empty() { Err(Errno::NOSPC) } else { Ok(steps) }
    }

    /// Takes a place for a cluster in the way. Leaves the clusters that metadata may need.
    fn place_aside(&mut self) -> Option<HostCluster> {
        self.aside.pop().or_else(|| {
            let mut meta = self.maintenance.core.meta();
            if !meta.space.has(ROOM_FOR_BLOCKS + 1) {
                return None;
            }
            meta.space.take(1).map(|taken| HostCluster(taken.start))
        })
    }

    /// Copies clusters, given in the order of their new places.
    fn copy(&mut self, steps: &[Step]) -> Outcome {
        let Self { maintenance, buffer, .. } = self;
        let shape = maintenance.core.shape;
        let cluster_bytes = shape.cluster_bytes() as usize;
        let offset = |cluster: HostCluster| FileOffset::new(shape.offset(cluster));

        let mut rest = &mut buffer[..steps.len() * cluster_bytes];
        let mut reads = Vec::new();
        for run in steps.chunk_by(|a, b| a.cluster.from.0 + 1 == b.cluster.from.0) {
            let (target, others) = rest.split_at_mut(run.len() * cluster_bytes);
            reads.push((offset(run[0].cluster.from), target));
            rest = others;
        }
        maintenance.file.read_many(&mut reads)?;

        let mut parts: Vec<CopyPart> = Vec::new();
        for (step, cluster) in steps.iter().zip(buffer.chunks_exact(cluster_bytes)) {
            for part in parts_of(&*maintenance.core.file, shape, step, cluster)? {
                match parts.last_mut() {
                    Some(last) if last.goes_on_with(&part) => last.bytes += part.bytes,
                    _ => parts.push(part),
                }
            }
        }
        let mut rest = &mut buffer[..];
        let mut writes = Vec::new();
        for CopyPart { offset, bytes, is_hole } in parts {
            let (source, others) = rest.split_at_mut(bytes as usize);
            let offset = FileOffset::new(offset);
            match is_hole {
                true => maintenance.file.run(FileOp::Punch { offset, bytes })?,
                false => writes.push((offset, source)),
            }
            rest = others;
        }
        maintenance.file.write_many(&mut writes)
    }

    /// Uses the old places of the moved clusters as targets, or for stepping aside. Frees the
    /// surplus.
    fn use_freed(&mut self) {
        for place in self.maintenance.take_freed() {
            if !self.plan.freed(place) {
                self.aside.push(place);
            }
        }
        if self.aside.len() > self.most {
            let surplus: Vec<Range<u64>> = merged(self.aside.drain(self.most..).collect());
            self.maintenance.limbo.push_back((0, surplus));
            self.maintenance.reclaim_all();
        }
    }
}

/// A part of a cluster to copy, and its new offset.
struct CopyPart {
    offset: u64,
    bytes: u64,
    /// It is not allocated at the new offset.
    is_hole: bool,
}

impl CopyPart {
    fn goes_on_with(&self, next: &Self) -> bool {
        self.offset + self.bytes == next.offset && self.is_hole == next.is_hole
    }
}

/// Returns the parts of a cluster that was read: holes stay holes, and a cluster of zeroes becomes
/// one.
fn parts_of(
    file: &dyn FileIo,
    shape: Shape,
    step: &Step,
    cluster: &[u8],
) -> Result<Vec<CopyPart>, Errno> {
    let (from, to) = (shape.offset(step.cluster.from), shape.offset(step.to));
    let end = from + shape.cluster_bytes();
    if is_zero(cluster) {
        return Ok(vec![CopyPart { offset: to, bytes: end - from, is_hole: true }]);
    }
    // A hole reads as zeroes, so a cluster without zero blocks has none.
    if !cluster.chunks(HOST_BLOCK_BYTES).any(is_zero) {
        return Ok(vec![CopyPart { offset: to, bytes: end - from, is_hole: false }]);
    }
    let mut parts = Vec::new();
    let mut at = from;
    while at < end {
        let found = file.next_data(FileOffset::new(at));
        let found = found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let data = found.map_or(end..end, |data| data.start.get()..data.end.get());
        let (start, stop) = (data.start.min(end), data.end.min(end));
        parts.push(CopyPart { offset: to + (at - from), bytes: start - at, is_hole: true });
        parts.push(CopyPart { offset: to + (start - from), bytes: stop - start, is_hole: false });
        at = stop;
    }
    parts.retain(|part| part.bytes > 0);
    Ok(parts)
}
