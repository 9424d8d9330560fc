//! The thread that changes the form of queues, with `--pipeline auto`.

use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{Builder, JoinHandle};

use flowstone_block::lock;
use tracing::{debug, warn};

use super::form::Form;
use super::form_choice::{FormChoice, QueueLook};
use super::load_watch::{LoadWatch, Look};
use super::running_queue::RunningQueue;
use crate::counters::QueueCounters;
use crate::idle_cpus::IdleCpus;
use crate::poller::Activity;

/// Load below which all queues count as idle, in CPUs.
const IDLE: f64 = 0.001;
/// Stack size of a thread that changes a form: it starts and stops others.
const STACK_BYTES: usize = 128 << 10;

/// Environment variable that makes queues change their form at every look, in builds with debug
/// assertions.
const RESTLESS: &str = "FLOWSTONE_RESTLESS_FORMS";

/// Owner of the thread, which starts with the first queue.
#[derive(Default)]
pub(super) struct FormChanger {
    queues: Arc<Mutex<Vec<Watched>>>,
    watch: Mutex<Option<LoadWatch>>,
}

/// A queue whose form is chosen by load.
pub(super) struct Watched {
    queue: Weak<RunningQueue>,
    choice: FormChoice,
    before: Done,
    /// The form change in progress: its target and its thread.
    change: Option<(Form, JoinHandle<bool>)>,
}

/// Cumulative counters of a queue.
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
    /// Adds a queue, which runs fused, to those whose form is chosen.
    pub fn add(&self, queue: &Arc<RunningQueue>, activity: &Arc<Activity>) -> io::Result<()> {
        lock(&self.queues).push(Watched::new(queue));
        let mut watch = lock(&self.watch);
        if watch.is_none() {
            let queues = Arc::clone(&self.queues);
            let mut idle = IdleCpus::default();
            let look = move |look| {
                // Reading idle times is costly on large hosts, and needed only before a trial.
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

/// Looks at every queue, and begins to change those that should run in the other form. Returns
/// whether to look again soon: there was load, or a queue that does not run.
pub(super) fn look_at_all(queues: &Mutex<Vec<Watched>>, idle: &IdleCpus, look: Look) -> bool {
    let (mut load, mut waits, mut known) = (0.0, false, Vec::new());
    let mut all = lock(queues);
    all.retain(|watched| watched.queue.strong_count() > 0);
    for watched in &mut *all {
        let Some(queue) = watched.queue.upgrade() else { continue };
        let seen = watched.measure(&queue, idle, look);
        load += seen.load + seen.front_load;
        if watched.is_changing() {
            waits = true;
        } else if let (false, Some(form)) = (look.is_stale, watched.choice.look(seen)) {
            watched.begin_change(form);
        }
        known.push(Arc::downgrade(&queue));
    }
    drop(all);
    let is_stranded = |queue: Arc<RunningQueue>| queue.is_stranded();
    let stranded = known.iter().filter_map(Weak::upgrade).map(is_stranded);
    // All of them, whatever the first one says.
    stranded.fold(load > IDLE || waits, |looks_again, is_stranded| looks_again | is_stranded)
}

impl Watched {
    pub fn new(queue: &Arc<RunningQueue>) -> Self {
        let is_restless = cfg!(debug_assertions) && std::env::var_os(RESTLESS).is_some();
        let choice = if is_restless { FormChoice::restless } else { FormChoice::new };
        let (choice, before) = (choice(Form::Fused), Done::of(queue.counters()));
        Self { queue: Arc::downgrade(queue), choice, before, change: None }
    }

    /// Returns whether its form is being changed. Records a change that has failed.
    fn is_changing(&mut self) -> bool {
        if let Some((form, change)) = self.change.take_if(|(_, change)| change.is_finished())
            && !change.join().unwrap_or(false)
        {
            self.choice.stays(form.other());
        }
        self.change.is_some()
    }

    /// Starts the change on a thread of its own: it waits until the queue has nothing in flight,
    /// and no other queue must wait for a disk that hangs.
    fn begin_change(&mut self, form: Form) {
        debug!(?form, "a queue changes its form");
        // A weak reference until it begins: a disk that is removed meanwhile is released.
        let queue = Weak::clone(&self.queue);
        let change = move || queue.upgrade().is_some_and(|queue| queue.change(form));
        match Builder::new().name("form".into()).stack_size(STACK_BYTES).spawn(change) {
            Ok(thread) => self.change = Some((form, thread)),
            Err(error) => {
                warn!(%error, "a queue keeps its form");
                self.choice.stays(form.other());
            }
        }
    }

    fn measure(&mut self, queue: &RunningQueue, idle: &IdleCpus, look: Look) -> QueueLook {
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
