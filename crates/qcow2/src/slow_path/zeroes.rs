//! Discards and zeroes: whole clusters in the map, parts of clusters in the file.

use std::ops::Range;
use std::sync::{Arc, MutexGuard};

use flowstone_block::{AlignedBuf, Errno, Extent, Outcome, mutated};
use flowstone_fileio::{FileOffset, FileOp};

use super::super::core::Core;
use super::super::entry::{Mapping, ZERO};
use super::super::meta::Meta;
use super::super::shape::GuestCluster;
use super::tables::{load, look};
use super::worker::{ASKS_MAX, SlowPathWorker};

/// Maximum number of clusters changed under one hold of the map's lock.
const PIECE_CLUSTERS_MAX: u64 = 1 << 12;

/// Step that makes a cluster read as zeroes.
enum Step {
    Nothing,
    /// Change its entry.
    Enter(u64),
    /// Zero its bytes in the file.
    InPlace(Range<u64>),
    /// Write zeroes as a guest would.
    Write,
}

/// Adds a range, merging it with the last one if contiguous.
fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == next.start => last.end = next.end,
        _ => ranges.push(next),
    }
}

/// Waits until there is room for one more table.
fn room_for_table<'core>(
    core: &'core Core,
    mut meta: MutexGuard<'core, Meta>,
) -> Result<MutexGuard<'core, Meta>, Errno> {
    for _ in 0..ASKS_MAX {
        if meta.has_room(0) {
            return Ok(meta);
        }
        drop(meta);
        core.ask_for_room()?;
        meta = core.meta();
    }
    if meta.has_room(0) { Ok(meta) } else { Err(Errno::NOSPC) }
}

impl SlowPathWorker {
    /// Makes a range read as zeroes; with `unmap`, frees its space.
    pub(super) fn zero(&mut self, extent: Extent, unmap: bool) -> Outcome {
        let shape = self.core.shape;
        let cluster_bytes = shape.cluster_bytes();
        let disk_end = self.core.capacity().bytes();
        let end = extent.start_bytes() + extent.bytes();
        // The last cluster may extend beyond the end of the disk; that part holds nothing.
        let whole_end = if end == disk_end { end.next_multiple_of(cluster_bytes) } else { end };
        let mut position = extent.start_bytes();
        while position < end {
            let whole = (whole_end - position) / cluster_bytes;
            if position.is_multiple_of(cluster_bytes) && whole > 0 {
                let guest = shape.guest_at(position);
                position += self.zero_whole(guest, whole, unmap)? * cluster_bytes;
            } else {
                let bytes = (end - position).min(cluster_bytes - position % cluster_bytes);
                self.zero_part(position, bytes, unmap)?;
                position += bytes;
            }
        }
        Ok(())
    }

    /// Zeroes up to `most` whole clusters, at most those of one table and one piece. Returns their
    /// number.
    fn zero_whole(&mut self, first: GuestCluster, most: u64, unmap: bool) -> Result<u64, Errno> {
        let shape = self.core.shape;
        self.wait_while_full()?;
        let most = most.min(shape.l2_entries() - first.0 % shape.l2_entries());
        let core = Arc::clone(&self.core);
        let mut meta = core.meta();
        if meta.map.is_table_empty(first) {
            if meta.is_zero_below(first) {
                return Ok(most);
            }
            // A table will be created.
            meta = room_for_table(&core, meta)?;
        }
        let checks_room = mutated("qcow2.zeroes.overruns-the-redo-file", true, false);
        let most = if checks_room { most.min(PIECE_CLUSTERS_MAX) } else { most };
        let (mut in_place, mut done) = (Vec::new(), 0);
        while done < most {
            let guest = GuestCluster(first.0 + done);
            let mapping = match meta.mapping(guest) {
                Ok(mapping) => mapping.ok_or(Errno::IO)?,
                Err(missing) => {
                    drop(meta);
                    load(&core, &mut self.file, missing)?;
                    return Ok(0);
                }
            };
            if meta.is_locked(guest) {
                if done == 0 {
                    meta = core.wait_for_change(meta);
                    continue;
                }
                break;
            }
            if meta.is_full(1) && checks_room {
                break;
            }
            match step(&meta, guest, mapping, unmap) {
                Step::Nothing => {}
                Step::Enter(raw) => meta.change(guest, raw),
                Step::InPlace(range) => push(&mut in_place, range),
                Step::Write if done > 0 => break,
                Step::Write => {
                    drop(meta);
                    let mut zeroes = AlignedBuf::zeroed(shape.cluster_bytes() as usize);
                    self.write(shape.position(guest), &mut zeroes)?;
                    return Ok(1);
                }
            }
            done += 1;
        }
        if in_place.is_empty() {
            return Ok(done);
        }
        let epoch = self.pins.hold(meta.epoch, meta);
        let zeroed = in_place.into_iter().try_for_each(|range| self.zero_in_place(range, unmap));
        self.pins.unpin(epoch);
        zeroed.map(|()| done)
    }

    /// Zeroes a part of one cluster.
    fn zero_part(&mut self, position: u64, bytes: u64, unmap: bool) -> Outcome {
        let shape = self.core.shape;
        let core = Arc::clone(&self.core);
        let guest = shape.guest_at(position);
        let (meta, mapping) = look(&core, &mut self.file, |meta| meta.mapping(guest))?;
        match mapping.ok_or(Errno::IO)? {
            Mapping::Zero { .. } => Ok(()),
            Mapping::Unallocated if meta.is_zero_below(guest) => Ok(()),
            Mapping::Data { host, ours: true } => {
                let start = shape.offset(host) + position - shape.position(guest);
                let epoch = self.pins.hold(meta.epoch, meta);
                let outcome = self.zero_in_place(start..start + bytes, unmap);
                self.pins.unpin(epoch);
                outcome
            }
            Mapping::Unallocated | Mapping::Data { .. } | Mapping::Compressed(_) => {
                drop(meta);
                self.write(position, &mut AlignedBuf::zeroed(bytes as usize))
            }
        }
    }

    fn zero_in_place(&mut self, range: Range<u64>, unmap: bool) -> Outcome {
        let (offset, bytes) = (FileOffset::new(range.start), range.end - range.start);
        if !unmap {
            return self.file.run(FileOp::Zero { offset, bytes });
        }
        self.core.discards.count_runs(1);
        self.file.run(FileOp::Punch { offset, bytes })
    }
}

/// Decides how to zero a whole cluster that is not locked.
fn step(meta: &Meta, guest: GuestCluster, mapping: Mapping, unmap: bool) -> Step {
    let shape = meta.map.shape;
    let zero_below = meta.is_zero_below(guest);
    // The entry of a cluster that holds no data and reads as zeroes, if the version has one.
    let empty = match (zero_below, shape.version) {
        (true, _) => Some(0),
        (false, 2) => None,
        (false, _) => Some(ZERO),
    };
    let bytes_of = |host| shape.offset(host)..shape.offset(host) + shape.cluster_bytes();
    match (mapping, empty) {
        (Mapping::Unallocated, _) if zero_below => Step::Nothing,
        (Mapping::Zero { reserved: None }, _) => Step::Nothing,
        (Mapping::Zero { reserved: Some(_) }, _) if !unmap => Step::Nothing,
        (Mapping::Data { host, ours: true }, _) if !unmap => Step::InPlace(bytes_of(host)),
        (_, Some(raw)) => Step::Enter(raw),
        (Mapping::Data { host, ours: true }, None) => Step::InPlace(bytes_of(host)),
        (_, None) => Step::Write,
    }
}
