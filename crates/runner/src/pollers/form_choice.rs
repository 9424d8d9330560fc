//! Decides which form a queue should run in (`--pipeline auto`). A pure function from loads and
//! rates to a change.
//!
//! The load only selects what to try; the rate of requests decides. A queue that fills its thread
//! is tried on two while a CPU idles, and stays there if the rate is higher. The verdict is
//! re-examined at intervals that grow while it stays the same, because guests change their
//! behaviour.

use super::form::Form;

/// Load above which a thread is full, in CPUs.
const FULL: f64 = 0.8;
/// Idle CPU time required before a second thread is tried, in CPUs.
const SPARE: f64 = 0.7;
/// Load of both threads together that one thread can carry with room, in CPUs.
const LIGHT: f64 = 0.6;
/// Factor by which two threads must exceed the rate of one: they use more CPU time.
const GAIN: f64 = 1.05;
/// Looks per measurement.
const LOOKS: u32 = 5;
/// Looks ignored after a change.
const SETTLING: u32 = 1;
/// Looks between two trials: initially, and at most.
const PAUSE_FIRST: u32 = 100;
const PAUSE_MAX: u32 = 6400;
/// Looks between two trials of a queue whose load comes and goes.
const PAUSE_LIGHT: u32 = 10;

/// Measurements of a queue since the last look.
#[derive(Clone, Copy, Debug)]
pub struct QueueLook {
    /// Load of the thread that completes requests, or of the only one, in CPUs.
    pub load: f64,
    /// Load of the thread that takes requests, if that is another one, in CPUs.
    pub front_load: f64,
    /// Completed requests per second.
    pub rate: f64,
    /// Idle CPU time where a second thread could run, in CPUs.
    pub spare: f64,
}

/// The state of the choice for one queue.
#[derive(Debug)]
pub struct FormChoice {
    form: Form,
    /// Rate of the other form, while this one is tried.
    tried_against: Option<f64>,
    /// Looks until the next trial.
    pause: u32,
    /// Looks until the next trial after another verdict that is the same.
    next_pause: u32,
    /// Looks until the next trial after one that an idle driver cuts short.
    cut_pause: u32,
    /// Looks for which no change is requested, since one has failed.
    stuck: u32,
    /// Whether the queue filled its thread at the last look.
    was_full: bool,
    /// Consecutive looks at which the queue was light.
    light: u32,
    rates: Rates,
    is_restless: bool,
}

/// Mean request rate of consecutive looks.
#[derive(Debug, Default)]
struct Rates {
    skip: u32,
    count: u32,
    sum: f64,
}

impl Rates {
    fn restart(&mut self, skip: u32) {
        *self = Self { skip, count: 0, sum: 0.0 };
    }

    fn add(&mut self, rate: f64) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        // The newest looks have the weight.
        if self.count >= LOOKS {
            self.sum -= self.sum / f64::from(self.count);
            self.count -= 1;
        }
        self.sum += rate;
        self.count += 1;
    }

    fn mean(&self) -> Option<f64> {
        (self.count >= LOOKS).then(|| self.sum / f64::from(self.count))
    }
}

impl FormChoice {
    /// Makes the choice of a queue that runs in this form.
    pub fn new(form: Form) -> Self {
        let rates = Rates::default();
        let (next_pause, cut_pause) = (PAUSE_FIRST, PAUSE_LIGHT);
        Self {
            form,
            tried_against: None,
            pause: 0,
            next_pause,
            cut_pause,
            stuck: 0,
            was_full: false,
            light: 0,
            rates,
            is_restless: false,
        }
    }

    /// Makes a choice that changes the form at each look, whatever the load; for tests.
    pub fn restless(form: Form) -> Self {
        Self { is_restless: true, ..Self::new(form) }
    }

    /// Records that a change has failed: the queue still runs in this form.
    pub fn stays(&mut self, form: Form) {
        let is_restless = self.is_restless;
        *self = Self { stuck: PAUSE_MAX, is_restless, ..Self::new(form) };
    }

    /// Returns whether the next look needs the idle CPU time.
    pub fn wants_spare(&self) -> bool {
        self.form == Form::Fused && self.tried_against.is_none() && self.pause == 0 && self.was_full
    }

    /// Processes one look. Returns the form to change to, if any.
    pub fn look(&mut self, look: QueueLook) -> Option<Form> {
        self.was_full = look.load > FULL && self.stuck == 0;
        if self.stuck > 0 {
            self.stuck -= 1;
            return None;
        }
        if self.is_restless {
            return self.change(self.form.other());
        }
        self.pause = self.pause.saturating_sub(1);
        let is_light = look.load + look.front_load < LIGHT;
        self.light = if is_light { self.light + 1 } else { 0 };
        if self.form == Form::Split && self.light >= LOOKS {
            // No verdict: the rate under more load is unknown. The interval grows for a driver that
            // never lets a trial end.
            let is_cut = self.tried_against.take().is_some();
            self.pause = if is_cut { self.cut_pause } else { PAUSE_LIGHT };
            self.cut_pause = if is_cut { (2 * self.cut_pause).min(PAUSE_MAX) } else { PAUSE_LIGHT };
            self.next_pause = PAUSE_FIRST;
            return self.change(Form::Fused);
        }
        if self.tried_against.is_none() && self.form == Form::Fused {
            let is_full = look.load > FULL && look.spare > SPARE;
            if !is_full || self.pause > 0 {
                self.rates.restart(0);
                return None;
            }
        }
        if is_light {
            // An idle driver says nothing about the form.
            return None;
        }
        self.rates.add(look.rate);
        let rate = self.rates.mean()?;
        match self.tried_against {
            Some(other) => self.judge(rate, other),
            None if self.pause == 0 => {
                self.tried_against = Some(rate);
                self.change(self.form.other())
            }
            None => None,
        }
    }

    /// Ends a trial: returns the form to change to, if the tried one is not the better one.
    fn judge(&mut self, rate: f64, other: f64) -> Option<Form> {
        self.tried_against = None;
        let (fused, split) = match self.form {
            Form::Fused => (rate, other),
            Form::Split => (other, rate),
        };
        let best = if split > fused * GAIN { Form::Split } else { Form::Fused };
        // The form that was tried is the current one.
        let is_news = best == self.form;
        self.pause = if is_news { PAUSE_FIRST } else { self.next_pause };
        self.next_pause = (2 * self.pause).min(PAUSE_MAX);
        if is_news {
            self.rates.restart(0);
            return None;
        }
        self.change(best)
    }

    fn change(&mut self, form: Form) -> Option<Form> {
        self.form = form;
        self.light = 0;
        self.rates.restart(SETTLING);
        Some(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated queue whose driver issues `wanted` requests per second, with a maximum rate in
    /// each form.
    struct Queue {
        choice: FormChoice,
        wanted: f64,
        fused: f64,
        split: f64,
        spare: f64,
        /// Looks in each form, and the number of changes.
        looks: [u32; 2],
        changes: u32,
    }

    impl Queue {
        fn new(fused: f64, split: f64) -> Self {
            let choice = FormChoice::new(Form::Fused);
            let wanted = f64::INFINITY;
            Self { choice, wanted, fused, split, spare: 1.0, looks: [0; 2], changes: 0 }
        }

        fn run(&mut self, looks: u32) -> Form {
            for _ in 0..looks {
                let form = self.choice.form;
                self.looks[form as usize] += 1;
                let able = if form == Form::Fused { self.fused } else { self.split };
                let (rate, load) = (self.wanted.min(able), (self.wanted / able).min(1.0));
                let front_load = if form == Form::Split { load / 2.0 } else { 0.0 };
                let look = QueueLook { load, front_load, rate, spare: self.spare };
                self.changes += u32::from(self.choice.look(look).is_some());
            }
            self.choice.form
        }
    }

    #[test]
    fn a_full_queue_is_tried_on_two_threads_and_stays_if_they_do_more() {
        let mut queue = Queue::new(1e6, 1.6e6);
        assert_eq!(queue.run(LOOKS), Form::Split);
        assert_eq!(queue.run(2 * LOOKS), Form::Split);
        assert_eq!(queue.changes, 1);
    }

    #[test]
    fn a_queue_that_two_threads_do_not_help_goes_back_and_is_tried_seldom() {
        for split in [0.3e6, 1.04e6] {
            let mut queue = Queue::new(1e6, split);
            queue.run(36_000);
            let part = f64::from(queue.looks[Form::Split as usize]) / 36_000.0;
            assert!(part < 0.003, "{part} of an hour in the worse form");
            assert_eq!(queue.choice.form, Form::Fused);
        }
    }

    #[test]
    fn the_better_form_has_nearly_all_of_the_time_also_if_that_is_two_threads() {
        let mut queue = Queue::new(1e6, 2e6);
        queue.run(36_000);
        let part = f64::from(queue.looks[Form::Fused as usize]) / 36_000.0;
        assert!(part < 0.003, "{part} of an hour in the worse form");
    }

    #[test]
    fn nothing_is_tried_without_a_cpu_that_idles_or_without_load() {
        let mut crowded = Queue::new(1e6, 2e6);
        crowded.spare = 0.5;
        crowded.run(10_000);
        let mut light = Queue::new(1e6, 2e6);
        light.wanted = 0.7e6;
        light.run(10_000);
        assert_eq!((crowded.changes, light.changes), (0, 0));
    }

    #[test]
    fn a_queue_goes_back_to_one_thread_when_its_load_goes_and_comes_back_with_it() {
        let mut queue = Queue::new(1e6, 2e6);
        queue.run(20);
        queue.wanted = 0.1e6;
        assert_eq!(queue.run(LOOKS), Form::Fused);
        queue.wanted = f64::INFINITY;
        assert_eq!(queue.run(PAUSE_LIGHT + LOOKS), Form::Split);
    }

    /// A driver that pauses during a trial would make any form look bad.
    #[test]
    fn a_pause_of_the_driver_is_no_verdict() {
        let mut queue = Queue::new(1e6, 2e6);
        queue.run(LOOKS);
        queue.wanted = 0.0;
        queue.run(LOOKS - 1);
        queue.wanted = f64::INFINITY;
        assert_eq!(queue.run(20), Form::Split);
        assert_eq!(queue.changes, 1);
    }

    #[test]
    fn a_guest_that_changes_what_it_does_is_noticed() {
        let mut queue = Queue::new(1e6, 2e6);
        queue.run(1000);
        queue.split = 0.5e6;
        assert_eq!(queue.run(PAUSE_MAX + 20), Form::Fused);
        queue.split = 2e6;
        assert_eq!(queue.run(PAUSE_MAX + 20), Form::Split);
    }

    #[test]
    fn random_loads_do_not_make_a_queue_change_all_the_time() {
        let mut random = fastrand::Rng::with_seed(14);
        for _ in 0..200 {
            let mut queue = Queue::new(1e6, 1e6 * (0.5 + 1.5 * random.f64()));
            for _ in 0..600 {
                queue.wanted = 4e6 * random.f64();
                queue.spare = random.f64();
                queue.run(1);
            }
            assert!(queue.changes <= 24, "{} changes in a minute", queue.changes);
        }
    }

    /// Each trial was cut short by a pause, so there was no verdict, and the next burst began
    /// another one: a change per second for ever, and half of each burst in the worse form.
    #[test]
    fn trials_that_pauses_of_the_driver_cut_short_become_seldom() {
        for (burst, pause) in [(5, 15), (8, 12), (10, 10), (7, 6)] {
            let mut queue = Queue::new(1e6, 0.5e6);
            let (mut busy, mut worse) = (0, 0);
            for look in 0..36_000 {
                let works = look % (burst + pause) < burst;
                queue.wanted = if works { f64::INFINITY } else { 0.0 };
                let is_split = queue.choice.form == Form::Split;
                (busy, worse) = (busy + u32::from(works), worse + u32::from(works && is_split));
                queue.run(1);
            }
            let part = f64::from(worse) / f64::from(busy);
            let changes = queue.changes;
            assert!(part < 0.01, "{burst}+{pause}: {part} of the work in the worse form");
            assert!(changes < 100, "{burst}+{pause}: {changes} changes in an hour");
        }
    }

    /// It was asked for again each half second: each time the queue stopped, and might not have run
    /// again.
    #[test]
    fn a_change_back_that_cannot_be_made_is_not_asked_for_all_the_time() {
        let mut queue = Queue::new(1e6, 2e6);
        queue.run(20);
        queue.wanted = 0.1e6;
        let mut asked = 0;
        for _ in 0..600 {
            let before = queue.changes;
            queue.run(1);
            if queue.changes > before {
                asked += 1;
                queue.choice.stays(Form::Split);
            }
        }
        assert!(asked <= 2, "{asked} times in a minute");
    }

    /// The cost of the change itself says nothing of the form.
    #[test]
    fn the_first_look_after_a_change_is_not_counted() {
        let mut queue = Queue::new(1e6, 1.2e6);
        queue.run(LOOKS);
        queue.choice.look(QueueLook { load: 1.0, front_load: 0.5, rate: 0.1e6, spare: 1.0 });
        assert_eq!(queue.run(LOOKS), Form::Split);
    }

    /// `/proc/stat` was read ten times a second for as long as any guest sent a request now and
    /// then.
    #[test]
    fn only_a_queue_that_fills_its_thread_needs_to_know_what_idles() {
        let mut queue = Queue::new(1e6, 2e6);
        assert!(!queue.choice.wants_spare());
        queue.wanted = 0.1e6;
        queue.run(100);
        assert!(!queue.choice.wants_spare());
        queue.wanted = f64::INFINITY;
        queue.run(1);
        assert!(queue.choice.wants_spare());
    }
}
