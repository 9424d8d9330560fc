//! Cleaning: when it is due, and of what. Live blocks of a victim are copied elsewhere, so that the
//! whole segment dies.

use flowstone_block::{Errno, Outcome};

use super::{CheckpointKind, Maintenance, Progress};
use crate::log::append::Health;
use crate::log::ids::SegmentId;
use crate::log::policy::{LIFETIME_CLEANED, LIFETIME_MAP};
use crate::log::record::LEAF_ON_DISK_BLOCKS;
use crate::log::reserve::{SLACK_SEGMENTS, Step, View};
use crate::log::segments::Segment;

/// Checkpoints that may be needed until the map takes a segment less.
const MAP_ATTEMPTS: u32 = 3;
/// So many are cleaned before the next look at everything else.
const SPARSE_TOGETHER: u32 = 8;
/// Guests that write so many records in [`RELEASE_TIME`] at most are quiet: there is always a log
/// file or a journal that is written now and then.
const QUIET_RECORDS: u64 = 32;

impl Maintenance {
    /// Frees a segment if they are running out: cleans a victim, or makes durable what the dead
    /// wait for.
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
                // Else guests would write at once what the next victim is to win.
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
        };
        let blocks = |segments: u32| u64::from(segments) * u64::from(segment_blocks);
        // What a sync frees is as good as free.
        state.rate.set_room(blocks(view.left_for_writes() + freeable), blocks(SLACK_SEGMENTS));
        view
    }

    /// Whether a checkpoint frees what is dead for less than it costs to clean this victim.
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
            // The room that copies need is what the map has beyond its share, if anything is.
            Err(Errno::NOSPC) => self.clean_map(),
            done => done,
        }
    }

    /// What the open outputs lack may be all there is to win: one of them ends and goes into
    /// another.
    fn clean_stream(&mut self) -> Outcome {
        let lifetime = self.merge_streams(LIFETIME_CLEANED);
        let (victim, segment) = self.choose_victim().ok_or(Errno::NOSPC)?;
        self.clean_into(lifetime, victim, segment)
    }

    /// Makes the map smaller. `NOSPC` if that is not to be had.
    fn clean_map(&mut self) -> Outcome {
        let used = |maintenance: &Self| maintenance.core.append_state().segments.used_for_maps();
        let before = used(self);
        // The first attempt may end the open segment and leave it sparse, which the next one makes
        // up for. Where a root takes most of a segment no attempt wins anything.
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

    /// The leaves of these segments count as changed: the checkpoint writes them elsewhere.
    fn checkpoint_without(&mut self, victims: &[SegmentId]) -> Outcome {
        self.checkpoint(CheckpointKind::Running)?;
        let mut state = self.core.append_state();
        for victim in victims {
            if state.segments.get(*victim).live > 0 {
                // The image was tampered with: the victim must not be tried again for ever.
                state.segments.mark_damaged(*victim);
            }
        }
        Ok(())
    }

    /// Cleans sparse segments, as long as guests are quiet. What guests discard lies scattered
    /// between what stays; cleaning gives that space back to the host even if no write needs it.
    /// Copying one block frees two: low write amplification. Only a few segments at a time: the
    /// victims are free after the next checkpoint, and work that comes meanwhile must not wait for
    /// all of them.
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

    /// Whether guests write next to nothing, and no request waits for the maintenance worker.
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
