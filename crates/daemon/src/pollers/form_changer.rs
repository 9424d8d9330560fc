//! The thread that changes the form of queues with `--pipeline auto`.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tracing::debug;

use super::form_choice::{FormChoice, QueueLook};
use super::load_watch::{LoadWatch, Look};
use super::placed::Form;
use super::placed_queue::Changeable;
use crate::counters::QueueCounters;
use crate::idle_cpus::IdleCpus;
use crate::poller::Activity;

/// Less than that, in CPUs, is no load.
const IDLE: f64 = 0.001;

/// The thread. It is started with its first queue.
#[derive(Default)]
pub(super) struct FormChanger {
    queues: Arc<Mutex<Vec<Watched>>>,
    watch: Mutex<Option<LoadWatch>>,
}

/// A queue whose form is chosen.
pub(super) struct Watched {
    queue: Weak<Changeable>,
    choice: FormChoice,
    before: Done,
}

/// What a queue has done since it began.
#[derive(Clone, Copy)]
struct Done {
    work_ns: u64,
    front_ns: u64,
    requests: u64,
}

impl Done {
    fn of(counters: &QueueCounters) -> Self {
        let (work_ns, front_ns) = (counters.work_ns(), counters.front_ns());
        Self { work_ns, front_ns, requests: counters.all_requests() }
    }
}

impl FormChanger {
    /// Chooses the form of a queue from now on, which runs fused.
    pub fn add(&self, queue: &Arc<Changeable>, activity: &Arc<Activity>) -> io::Result<()> {
        lock(&self.queues).push(Watched::new(queue));
        let mut watch = lock(&self.watch);
        if watch.is_none() {
            let queues = Arc::clone(&self.queues);
            let mut idle = IdleCpus::default();
            let look = move |look| {
                // Costly on large hosts, and of interest when a queue is about to be tried only.
                if lock(&queues).iter().any(|watched| watched.choice.wants_spare()) {
                    idle.look();
                }
                look_at_all(&queues, &idle, look)
            };
            *watch = Some(LoadWatch::start("forms", Arc::clone(activity), look)?);
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at every queue, and changes those that should run in the other form. Returns whether there was any load.
pub(super) fn look_at_all(queues: &Mutex<Vec<Watched>>, idle: &IdleCpus, look: Look) -> bool {
    let (mut load, mut changes, mut known) = (0.0, Vec::new(), Vec::new());
    let mut all = lock(queues);
    all.retain(|watched| watched.queue.strong_count() > 0);
    for watched in &mut *all {
        let Some(queue) = watched.queue.upgrade() else { continue };
        let seen = watched.measure(&queue, idle, look);
        load += seen.load + seen.front_load;
        if let (false, Some(form)) = (look.is_stale, watched.choice.look(seen)) {
            // Not held: a disk that is removed meanwhile is let go.
            changes.push((Arc::downgrade(&queue), form));
        }
        known.push(Arc::downgrade(&queue));
    }
    // A change waits until the queue has nothing in flight; new queues do not wait for that.
    drop(all);
    for (queue, form) in changes {
        let Some(queue) = queue.upgrade() else { continue };
        debug!(?form, "a queue changes its form");
        if !queue.change(form) {
            let is_it = |it: &&mut Watched| it.queue.as_ptr() == Arc::as_ptr(&queue);
            let mut all = lock(queues);
            if let Some(watched) = all.iter_mut().find(is_it) {
                watched.choice.stays(form.other());
            }
        }
    }
    let is_stranded = |queue: Arc<Changeable>| queue.is_stranded();
    let stranded = known.iter().filter_map(Weak::upgrade).map(is_stranded);
    // All of them, whatever the first one says.
    stranded.fold(load > IDLE, |looks_again, is_stranded| looks_again | is_stranded)
}

impl Watched {
    pub fn new(queue: &Arc<Changeable>) -> Self {
        let (choice, before) = (FormChoice::new(Form::Fused), Done::of(queue.counters()));
        Self { queue: Arc::downgrade(queue), choice, before }
    }

    fn measure(&mut self, queue: &Changeable, idle: &IdleCpus, look: Look) -> QueueLook {
        let done = Done::of(queue.counters());
        let before = std::mem::replace(&mut self.before, done);
        let seconds = look.time.as_secs_f64().max(1e-9);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let spare = || Some(idle.spare(&queue.cpus_of_second()?));
        QueueLook {
            load: rate(done.work_ns, before.work_ns) / 1e9,
            front_load: rate(done.front_ns, before.front_ns) / 1e9,
            rate: rate(done.requests, before.requests),
            spare: spare().unwrap_or(0.0),
        }
    }
}
