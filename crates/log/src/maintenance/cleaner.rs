//! The cleaner: when cleaning is due, and of which segments. Live blocks of a victim are copied, so
//! that the whole segment dies.

use flowstone_block::sync::atomic::Ordering;
use flowstone_block::{Errno, Outcome};
use flowstone_log_format::{LEAF_ON_DISK_BLOCKS, SegmentId};

use super::{CheckpointKind, Maintenance, Progress};
use crate::append::Health;
use crate::policy::{LIFETIME_CLEANED, LIFETIME_MAP};
use crate::reserve::{SLACK_SEGMENTS, Step, View, told_from};
use crate::segments::Segment;

/// Maximum number of checkpoints to make the map take a segment less.
const MAP_ATTEMPTS: u32 = 3;
/// Sparse segments cleaned before other work gets its turn.
const SPARSE_TOGETHER: u32 = 8;
/// Guests that write at most this many records in [`RELEASE_TIME`] are quiet: there is always a log
/// file or a journal that is written now and then.
const QUIET_RECORDS: u64 = 32;

impl Maintenance {
    /// Frees a segment if they are running out: cleans a victim, or makes the dead segments
    /// freeable.
    pub fn make_room(&mut self) -> Progress {
        let view = self.view();
        let done = match view.next_step() {
            Step::Nothing => return Progress::Idle,
            Step::SyncAndFree => self.release_freeable(),
            Step::Checkpoint => return self.try_checkpoint(),
            Step::CleanMap => self.clean_map().or_else(|_| self.clean_any()),
            Step::Clean => self.clean_any(),
        };
        match done {
            Ok(()) => {
                // Otherwise guests would at once write the space that the next victim is to free.
                self.goes_on = self.begun_victim().is_some();
                Progress::Made
            }
            Err(_) if self.view().dead > 0 => self.try_checkpoint(),
            Err(errno) => {
                if view.is_urgent() {
                    self.give_up_waiting(errno);
                }
                Progress::Idle
            }
        }
    }

    pub fn view(&self) -> View {
        let mut state = self.core.append_state();
        let (dead, freeable) = state.segments.dead();
        let segment_blocks = self.core.shape.segment_blocks;
        let view = View {
            reserve: state.reserve(&self.core.map, true),
            available: self.available(&state),
            trim_heads: state.trim_heads(),
            dead,
            freeable,
            map_segments: state.segments.used_for_maps(),
            segment_blocks,
            told_from: told_from(state.segments.limit(), self.core.telling.load(Ordering::Relaxed)),
        };
        let blocks = |segments: u32| u64::from(segments) * u64::from(segment_blocks);
        // Segments that a sync frees count as free.
        state.rate.set_room(blocks(view.left_for_writes() + freeable), blocks(SLACK_SEGMENTS));
        view
    }

    /// Returns whether a checkpoint frees the dead segments at a lower cost than cleaning this
    /// victim.
    fn checkpoint_is_cheaper(&self, view: &View, victim: Option<&Segment>) -> bool {
        let leaves = u64::from(self.core.map.changed_count());
        let blocks = leaves * u64::from(1 + LEAF_ON_DISK_BLOCKS) + u64::from(self.root.blocks);
        view.checkpoint_is_cheaper(blocks, victim.map(|it| it.live))
    }

    fn clean_any(&mut self) -> Outcome {
        let found = self.begun_victim().or_else(|| self.choose_victim());
        let view = self.view();
        if view.dead > 0 && self.checkpoint_is_cheaper(&view, found.as_ref().map(|it| &it.1)) {
            return self.checkpoint(CheckpointKind::Running);
        }
        let done = match found {
            Some((victim, segment)) => self.clean_one(victim, segment),
            None if self.view().is_urgent() => self.clean_stream(),
            None => Err(Errno::NOSPC),
        };
        match done {
            // The segments that copies need may be those that the map has beyond its share.
            Err(Errno::NOSPC) => self.clean_map(),
            done => done,
        }
    }

    /// Ends the open output streams but one, and copies into that: their unused room may be all
    /// there is to gain.
    fn clean_stream(&mut self) -> Outcome {
        let lifetime = self.merge_streams(LIFETIME_CLEANED);
        let (victim, segment) = self.choose_victim().ok_or(Errno::NOSPC)?;
        self.clean_into(lifetime, victim, segment)
    }

    /// Makes the map smaller. `NOSPC` if that is not possible.
    fn clean_map(&mut self) -> Outcome {
        let used = |maintenance: &Self| maintenance.core.append_state().segments.used_for_maps();
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
    fn checkpoint_without(&mut self, victims: &[SegmentId]) -> Outcome {
        self.checkpoint(CheckpointKind::Running)?;
        let mut state = self.core.append_state();
        for victim in victims {
            if state.segments.get(*victim).live > 0 {
                // The image was tampered with: the victim must not be retried for ever.
                state.segments.mark_damaged(*victim);
            }
        }
        Ok(())
    }

    /// Cleans sparse segments, as long as guests are quiet. Discarded blocks lie scattered between
    /// live ones; cleaning gives their space back to the host even if no write needs it. Copying
    /// one block frees two: low write amplification. Only a few segments at a time: the victims are
    /// free after the next checkpoint, and work that comes meanwhile must not wait for all of them.
    pub fn clean_sparse(&mut self) {
        for cleaned in 0..SPARSE_TOGETHER {
            if !self.is_quiet() || self.core.inbox.is_stopping() {
                return;
            }
            let Some((victim, segment)) = self.sparsest() else { return };
            if self.clean(victim, segment).is_err() {
                if cleaned == 0 {
                    self.sparse_tried = Some(self.core.append_state().committed());
                }
                return;
            }
        }
    }

    /// Returns whether guests write next to nothing, and no request waits for the maintenance
    /// worker.
    fn is_quiet(&self) -> bool {
        let state = self.core.append_state();
        let waits = state.wants_room() || state.health != Health::Running;
        !waits && state.committed().since(self.seen) <= QUIET_RECORDS
    }

    /// Copies the live blocks of `victim` into the stream of their lifetime.
    pub fn clean(&mut self, victim: SegmentId, segment: Segment) -> Outcome {
        let outcome = self.clean_one(victim, segment);
        self.end_copying();
        outcome
    }

    fn clean_one(&mut self, victim: SegmentId, segment: Segment) -> Outcome {
        if segment.lifetime == LIFETIME_MAP {
            self.outdate_map_segment(victim);
            return self.checkpoint_without(&[victim]);
        }
        let age = self.core.append_state().clock.saturating_sub(segment.birth);
        let mut lifetime = self.lifetimes.lifetime_for(segment.lifetime, age);
        if self.view().is_tight() {
            lifetime = self.merge_streams(lifetime);
        }
        self.clean_into(lifetime, victim, segment)
    }
}
