//! Segments of maps: sparse ones are freed by writing their leaves elsewhere.

use flowstone_block::{Errno, Outcome};
use flowstone_log_format::SegmentId;
use flowstone_log_store::segments::LOOK_MOST;

use super::{CheckpointKind, Writer};

/// Maximum number of checkpoints to make the map take a segment less.
const MAP_ATTEMPTS: u32 = 3;

impl Writer {
    /// Makes the map smaller. `NOSPC` if that is not possible.
    pub fn shrink_map(&mut self) -> Outcome {
        let used = |writer: &Self| writer.log.append_state().segments().used_for_maps();
        let before = used(self);
        // The first attempt may end the open segment and leave it sparse, which the next one makes
        // up for. Where a root takes most of a segment, no attempt frees anything.
        for _ in 0..MAP_ATTEMPTS {
            let victims = self.outdate_sparse_map();
            if victims.is_empty() {
                break;
            }
            self.checkpoint_without(&victims)?;
            self.release_freeable()?;
            if used(self) < before {
                return Ok(());
            }
        }
        Err(Errno::NOSPC)
    }

    /// Writes a checkpoint after which these segments should be dead: their leaves are marked as
    /// changed, so it writes them elsewhere.
    pub fn checkpoint_without(&mut self, victims: &[SegmentId]) -> Outcome {
        self.checkpoint(CheckpointKind::Running)?;
        for few in victims.chunks(LOOK_MOST) {
            let mut state = self.log.append_state();
            for victim in few {
                if state.segments().get(*victim).live > 0 {
                    // The image was tampered with: the victim must not be retried for ever.
                    state.segments_mut().mark_damaged(*victim);
                }
            }
        }
        Ok(())
    }

    /// Marks the live leaves of sparse map segments, so that the next checkpoint writes them
    /// elsewhere; all at once, since each checkpoint also writes a root, which in a segment of its
    /// own would gain nothing. Returns the segments.
    pub fn outdate_sparse_map(&mut self) -> Vec<SegmentId> {
        let most = self.log.append_state().reserve(&self.volume, true).leaves;
        let mut chosen = Vec::new();
        for (_, victim) in self.sparse_maps() {
            self.outdate_map_segment(victim);
            chosen.push(victim);
            if u64::from(self.volume.map.changed_count()) >= most {
                break;
            }
        }
        chosen
    }

    /// Returns the live blocks and numbers of sparse map segments, the emptiest first. Between two
    /// holds of the log's lock they stay as they are: only this thread writes maps.
    fn sparse_maps(&self) -> Vec<(u32, SegmentId)> {
        let mut found: Vec<(u32, SegmentId)> = Vec::new();
        loop {
            let behind = found.last().map(|(_, number)| *number);
            let few = self.log.append_state().segments().few_sparse_maps(behind);
            if few.is_empty() {
                break;
            }
            found.extend(few.into_iter().map(|(number, segment)| (segment.live, number)));
        }
        found.sort_unstable();
        found
    }

    /// Marks the leaves in a map segment as changed, so that the next checkpoint writes them
    /// elsewhere; the root moves with every checkpoint.
    pub fn outdate_map_segment(&mut self, victim: SegmentId) {
        for place in self.leaves.values() {
            if self.log.shape.segment_of(place.address) == victim {
                self.volume.map.touch(place.leaf);
            }
        }
    }
}
