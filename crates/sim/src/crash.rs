//! Crashes: from a moment in the history of a disk to the disk that is found afterwards.

use super::change::Change;
use super::disk::SimDisk;
use super::fate::{Fate, Verdict};
use super::history::{Cut, History, Moment, Standing, Step};
use super::state::State;

/// The most undecided operations of which all subsets are tried.
pub const EXHAUSTIVE_MAX: usize = 8;

impl SimDisk {
    /// The moment after everything that has happened so far.
    pub fn now(&self) -> Moment {
        self.state().history.now()
    }

    /// Every moment of this disk's life at which something may be different from the one before:
    /// its first, and the one after each submission and each completion of whatever is not a
    /// read.
    pub fn crash_points(&self) -> impl Iterator<Item = Moment> + use<> {
        let state = self.state();
        let (Moment(start), Moment(now)) = (state.history.start(), state.history.now());
        (start..=now).map(Moment)
    }

    /// How many operations a power cut at this moment leaves undecided.
    pub fn undecided_at(&self, moment: Moment) -> usize {
        undecided(&self.state().history.cut(moment).steps).count()
    }

    /// The disk that is found after power is cut at `moment`: all that was durable by then, and
    /// what `fate` leaves of the rest. It has no history and no faults; the limit of space and the
    /// schedule are as they are here.
    ///
    /// Going through moments from first to last is quick: what is certain is not replayed.
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

    /// Every disk that can be found after power is cut at `moment`, as far as whole operations
    /// go: one for each subset of the undecided ones. `None` if those are more than
    /// [`EXHAUSTIVE_MAX`].
    pub fn every_crash_at(&self, moment: Moment) -> Option<impl Iterator<Item = SimDisk>> {
        let count = self.undecided_at(moment);
        (count <= EXHAUSTIVE_MAX).then(|| {
            (0..1u64 << count).map(move |bits| self.crash_at(moment, &mut Fate::subset(bits)))
        })
    }

    /// The disk as the next process finds it after the one that used it is killed at `moment`:
    /// everything that had completed, and of what was in flight all, nothing or pieces, as `fate`
    /// will. (A host that has carried out half of a write does not take that half back.)
    ///
    /// The host lives on, so what was not durable is still not: a power cut may take it from the
    /// new disk until a datasync there covers it. The new disk has no faults; the limit of space
    /// and the schedule are as they are here.
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

/// A disk that comes after another one.
fn successor(before: &State, state: State) -> SimDisk {
    let (capacity, schedule) = (before.capacity, before.schedule);
    SimDisk::with_state(State { capacity, schedule, ..state })
}

fn undecided(steps: &[Step]) -> impl Iterator<Item = &Step> {
    steps.iter().filter(|step| step.standing != Standing::Durable)
}

/// What a power cut leaves of each step.
fn verdicts(steps: &[Step], fate: &mut Fate) -> Vec<Verdict> {
    let mut verdicts = verdicts_if(|step| step.standing != Standing::Durable, steps, fate);
    keep_order_of_sizes(steps, &mut verdicts);
    verdicts
}

/// Lets fate decide about the steps that `is_open` names; of the others all is left.
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

/// File systems write changes of size to a journal: a later one is not there without the earlier
/// ones. (Nor would a file that was cut and grew again read as zeroes otherwise.)
fn keep_order_of_sizes(steps: &[Step], verdicts: &mut [Verdict]) {
    let mut later_kept = false;
    for (step, verdict) in steps.iter().zip(verdicts).rev() {
        if matches!(step.change, Change::SetSize(_)) {
            later_kept |= *verdict == Verdict::Whole;
            *verdict = if later_kept { Verdict::Whole } else { Verdict::Absent };
        }
    }
}

/// The steps with their verdicts, in the order in which they reached the medium.
///
/// What was durable when it ended took effect then, because a reader may have seen it; anything
/// else may have done so at any time while it was in flight.
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

/// A change as far as it is left.
fn left_of(change: &Change, verdict: &Verdict) -> Vec<Change> {
    match verdict {
        Verdict::Absent => Vec::new(),
        Verdict::Whole => vec![change.clone()],
        Verdict::Torn(parts) => parts.iter().map(|part| change.part(part.clone())).collect(),
    }
}
