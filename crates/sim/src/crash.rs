//! Crashes: derives the disk found after a crash from a moment in a disk's history.

use super::change::Change;
use super::disk::SimDisk;
use super::fate::{Fate, Verdict};
use super::history::{Cut, History, Moment, Standing, Step};
use super::state::State;

/// Most undecided operations of which all subsets are tried.
pub const EXHAUSTIVE_MAX: usize = 8;

impl SimDisk {
    /// Returns the moment after everything that has happened so far.
    pub fn now(&self) -> Moment {
        self.state().history.now()
    }

    /// Iterates over the moments at which a crash may have a different result than before: the
    /// first one, and the one after each submission and each completion of anything but a read.
    pub fn crash_points(&self) -> impl Iterator<Item = Moment> + use<> {
        let state = self.state();
        let (Moment(start), Moment(now)) = (state.history.start(), state.history.now());
        (start..=now).map(Moment)
    }

    /// Returns the number of operations that a power cut at this moment leaves undecided.
    pub fn undecided_at(&self, moment: Moment) -> usize {
        undecided(&self.state().history.cut(moment).steps).count()
    }

    /// Returns the disk found after a power cut at `moment`: everything that was durable by then,
    /// and of the rest what `fate` decides. It has no history and no faults; its limit of space and
    /// its schedule are those of this disk.
    ///
    /// Going through moments from first to last is fast: certain operations are not replayed.
    pub fn crash_at(&self, moment: Moment, fate: &mut Fate) -> SimDisk {
        let mut state = self.state();
        let Cut { base: mut medium, steps } = state.history.cut(moment);
        let verdicts = verdicts(&steps, fate);
        for (step, verdict) in in_order_of_effect(moment, &steps, verdicts, fate) {
            left_of(&step.change, &verdict).iter().for_each(|change| change.apply(&mut medium));
        }
        let history = History::new(medium.clone());
        successor(&state, State::new(medium, history))
    }

    /// Iterates over all disks that may be found after a power cut at `moment`, by whole
    /// operations: one for each subset of the undecided ones. `None` if those are more than
    /// [`EXHAUSTIVE_MAX`].
    pub fn every_crash_at(&self, moment: Moment) -> Option<impl Iterator<Item = SimDisk>> {
        let count = self.undecided_at(moment);
        (count <= EXHAUSTIVE_MAX).then(|| {
            (0..1u64 << count).map(move |bits| self.crash_at(moment, &mut Fate::subset(bits)))
        })
    }

    /// Returns the disk as the next process finds it after the one that used it was killed at
    /// `moment`: everything that had completed, and of operations in flight all, nothing or pieces,
    /// as `fate` decides. (A host that has executed half of a write does not undo that half.)
    ///
    /// The host keeps running, so data that was not durable still is not: the new disk may lose it
    /// in a power cut until a datasync there covers it. The new disk has no faults; its limit of
    /// space and its schedule are those of this disk.
    pub fn kill_at(&self, moment: Moment, fate: &mut Fate) -> SimDisk {
        let mut state = self.state();
        let Cut { base, steps } = state.history.cut(moment);
        let verdicts = verdicts_if(|step| step.end.is_none(), &steps, fate);
        let kept: Vec<(Change, Standing)> = in_order_of_effect(moment, &steps, verdicts, fate)
            .into_iter()
            .flat_map(|(step, verdict)| {
                let standing = step.standing;
                left_of(&step.change, &verdict).into_iter().map(move |change| (change, standing))
            })
            .collect();
        let mut medium = base.clone();
        for (change, _) in &kept {
            change.apply(&mut medium);
        }
        let history = History::resumed(base, kept.into_iter());
        successor(&state, State::new(medium, history))
    }
}

/// Makes the disk that follows a crash of another one.
fn successor(before: &State, state: State) -> SimDisk {
    let (capacity, schedule) = (before.capacity, before.schedule);
    SimDisk::with_state(State { capacity, schedule, ..state })
}

fn undecided(steps: &[Step]) -> impl Iterator<Item = &Step> {
    steps.iter().filter(|step| step.standing != Standing::Durable)
}

/// Decides what a power cut leaves of each step.
fn verdicts(steps: &[Step], fate: &mut Fate) -> Vec<Verdict> {
    let mut verdicts = verdicts_if(|step| step.standing != Standing::Durable, steps, fate);
    keep_order_of_sizes(steps, &mut verdicts);
    verdicts
}

/// Lets `fate` decide about the steps selected by `is_open`; the others stay whole.
fn verdicts_if(is_open: impl Fn(&Step) -> bool, steps: &[Step], fate: &mut Fate) -> Vec<Verdict> {
    let open: Vec<&Change> =
        steps.iter().filter(|step| is_open(step)).map(|step| &step.change).collect();
    let mut decided = fate.verdicts(&open).into_iter();
    let mut verdict = |step| match is_open(step) {
        true => decided.next().expect("one for each open step"),
        false => Verdict::Whole,
    };
    steps.iter().map(&mut verdict).collect()
}

/// Keeps the order of size changes: file systems journal them, so a later one never survives
/// without the earlier ones. (Nor would a truncated file that grew again read as zeroes otherwise.)
fn keep_order_of_sizes(steps: &[Step], verdicts: &mut [Verdict]) {
    let mut later_kept = false;
    for (step, verdict) in steps.iter().zip(verdicts).rev() {
        if matches!(step.change, Change::SetSize(_)) {
            later_kept |= *verdict == Verdict::Whole;
            *verdict = if later_kept { Verdict::Whole } else { Verdict::Absent };
        }
    }
}

/// Returns the steps with their verdicts, in the order in which they reached the medium.
///
/// A step that was durable when it ended took effect then, because a reader may have seen it; any
/// other one may have done so at any time while in flight.
fn in_order_of_effect<'steps>(
    moment: Moment,
    steps: &'steps [Step],
    verdicts: Vec<Verdict>,
    fate: &mut Fate,
) -> Vec<(&'steps Step, Verdict)> {
    let Moment(cut) = moment;
    let mut order: Vec<(u64, &Step, Verdict)> = steps
        .iter()
        .zip(verdicts)
        .map(|(step, verdict)| {
            let end = step.end.unwrap_or(cut);
            let at = match step.standing {
                Standing::Durable => end,
                _ => fate.instant(step.begin, end),
            };
            (at, step, verdict)
        })
        .collect();
    order.sort_by_key(|(at, ..)| *at);
    order.into_iter().map(|(_, step, verdict)| (step, verdict)).collect()
}

/// Returns the remaining parts of a change.
fn left_of(change: &Change, verdict: &Verdict) -> Vec<Change> {
    match verdict {
        Verdict::Absent => Vec::new(),
        Verdict::Whole => vec![change.clone()],
        Verdict::Torn(parts) => parts.iter().map(|part| change.part(part.clone())).collect(),
    }
}
