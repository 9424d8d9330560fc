//! Space: grows the file ahead of need, and deallocates unused clusters on the host.

use std::ops::Range;
use std::time::Duration;

use flowstone_block::{Outcome, mutated};
use flowstone_fileio::{FileOffset, FileOp};

use super::{Maintenance, PATIENCE};
use crate::shape::HostCluster;
use crate::space::merge_runs;

/// Limits of the space of clusters that wait to be punched: this many bytes, or this fraction
/// (inverse) of the disk, whichever is more.
const GARBAGE_BYTES_MIN: u64 = 64 << 20;
const GARBAGE_PART: u64 = 16;
/// Maximum bytes punched or zeroed by one call: a flush may have to wait for it.
const PIECE_BYTES_MAX: u64 = 64 << 20;
/// Number of pieces that may fail before requests that wait for room fail.
const REFUSALS_MAX: u32 = 4;
/// Time of punching before other work gets its turn.
const TURN_MAX: Duration = Duration::from_millis(20);

impl Maintenance {
    /// Extends the file by at least `clusters` clusters.
    pub(super) fn grow(&mut self, clusters: u64) {
        let (next, end) = {
            let meta = self.core.meta();
            (meta.space.next(), meta.space.end())
        };
        if end - next >= clusters && self.core.meta().has_room(clusters) {
            return;
        }
        let clusters = clusters + self.core.meta().reserved;
        self.lengthen(next, end, clusters.max(self.core.room_step()));
        self.reserve();
        self.try_refused();
        let mut failures = 0;
        while !self.core.meta().has_room(clusters) && failures < REFUSALS_MAX {
            let Some(piece) = self.next_piece() else { break };
            failures += u32::from(self.punch(piece).is_err());
        }
    }

    /// Extends the file to `clusters` clusters from `next` on, or as many as possible.
    fn lengthen(&mut self, next: u64, end: u64, clusters: u64) {
        let mut step = clusters;
        loop {
            let bytes = (next + step) << self.core.shape.cluster_bits;
            match self.core.file.set_size(bytes) {
                Ok(()) => {
                    let mut meta = self.core.meta();
                    meta.file_bytes = bytes;
                    return meta.space.extend(next + step);
                }
                // The size of a device is fixed.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
                Err(_) if next + step / 2 > end => step /= 2,
                Err(error) => {
                    return self.warn(format_args!("cannot make the file larger: {error}"));
                }
            }
        }
    }

    /// Makes clusters whose punch failed a while ago garbage again.
    fn try_refused(&mut self) {
        if self.refused_at.is_some_and(|at| self.core.clock.since(at) >= PATIENCE) {
            self.refused_at = None;
            self.garbage.append(&mut self.refused);
            merge_runs(&mut self.garbage);
        }
    }

    /// Reserves the clusters that refcounts may need.
    pub(super) fn reserve(&self) {
        let mut meta = self.core.meta();
        let end = meta.space.end();
        meta.reserved = self.refcounts.needed_before(end);
    }

    /// Reclaims everything without a rest: there are no guests.
    pub(super) fn reclaim_all(&mut self) {
        self.reclaim_limbo();
        self.punch_all();
    }

    fn punch_all(&mut self) {
        while let Some(piece) = self.next_piece() {
            let _ = self.punch(piece);
        }
    }

    /// Takes a piece of the garbage.
    fn next_piece(&mut self) -> Option<Range<u64>> {
        let most = (PIECE_BYTES_MAX >> self.core.shape.cluster_bits).max(1);
        let run = self.garbage.last_mut()?;
        let piece = run.start.max(run.end.saturating_sub(most))..run.end;
        run.end = piece.start;
        if run.is_empty() {
            self.garbage.pop();
        }
        Some(piece)
    }

    /// Discards freed clusters on a device that does not punch, except those that were free all
    /// along.
    fn tell_device(&mut self, epoch: u64, runs: &[Range<u64>]) {
        if epoch == 0 || self.core.file.discards_to_zeroes() {
            return;
        }
        for run in runs {
            let (offset, bytes) = self.place(run);
            if let Err(errno) = self.file.run(FileOp::Discard { offset, bytes }) {
                self.warn(format_args!("cannot give space back: {errno}"));
            }
        }
    }

    /// Deallocates clusters that no request can be using any more, and makes them available.
    pub(super) fn reclaim_limbo(&mut self) {
        let mut found = false;
        while let Some((epoch, _)) = self.limbo.front() {
            let is_used = self.core.epochs.oldest() <= *epoch;
            let is_used = mutated("qcow2.limbo.ignores-pins", is_used, false);
            if is_used {
                break;
            }
            let (epoch, mut runs) = self.limbo.pop_front().expect("just seen");
            found |= !runs.is_empty();
            self.tell_device(epoch, &runs);
            self.garbage.append(&mut runs);
        }
        if found {
            merge_runs(&mut self.garbage);
        }
        self.try_refused();
        if !self.core.file.discards_to_zeroes() {
            return; // grow makes zero what is needed
        }
        let bits = self.core.shape.cluster_bits;
        let size = |run: &Range<u64>| (run.end - run.start) << bits;
        let mut left = self.garbage.iter().map(size).sum::<u64>();
        // Guests that free more than is punched beside them must not fill the host.
        let most = GARBAGE_BYTES_MIN.max(self.core.capacity().bytes() / GARBAGE_PART);
        if left <= most && self.rests_until.is_some_and(|end| end > self.core.clock.now()) {
            return;
        }
        self.rests_until = None;
        let turn = self.core.clock.now();
        while let Some(piece) = self.next_piece() {
            let began = self.core.clock.now();
            left -= size(&piece);
            let _ = self.punch(piece);
            let now = self.core.clock.now();
            let mut rest = self.pace.rest(now.duration_since(began), now, &self.core.activity);
            if left > most {
                rest = Duration::ZERO;
            }
            // A commit may be due meanwhile.
            let over = !rest.is_zero() || self.core.clock.since(turn) > TURN_MAX;
            if over && !self.garbage.is_empty() {
                self.rests_until = Some(self.core.clock.now() + rest);
                return;
            }
        }
    }

    /// Returns the number of freed clusters that are still allocated on the host.
    pub(super) fn dead(&self) -> u64 {
        let limbo = self.limbo.iter().flat_map(|(_, runs)| runs);
        // On a device that does not punch, all garbage has been discarded, or was free all along.
        let kept = self.core.file.discards_to_zeroes();
        let garbage = self.garbage.iter().chain(&self.refused).filter(|_| kept);
        let idle = limbo.chain(garbage).map(|run| run.end - run.start);
        idle.sum::<u64>() + self.pending.dropped.len() as u64
    }

    /// Returns the offset and the bytes of clusters in the file.
    fn place(&self, run: &Range<u64>) -> (FileOffset, u64) {
        let shape = self.core.shape;
        let offset = FileOffset::new(shape.offset(HostCluster(run.start)));
        (offset, (run.end - run.start) << shape.cluster_bits)
    }

    /// Punches clusters and makes them available. A failure is retried later: a host may be full,
    /// or not answer, for a moment.
    pub(super) fn punch(&mut self, run: Range<u64>) -> Outcome {
        let (offset, bytes) = self.place(&run);
        self.core.discards.count_runs(1);
        let outcome = self.file.run(FileOp::Punch { offset, bytes });
        match outcome {
            Ok(()) => self.core.meta().space.give_back(run),
            Err(errno) => {
                if self.refused_at.is_none() {
                    self.warn(format_args!("cannot give space back: {errno}"));
                }
                self.refused.push(run);
                self.refused_at.get_or_insert(self.core.clock.now());
            }
        }
        outcome
    }
}
