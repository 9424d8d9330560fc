//! Pollers that all queues share, and the thread that moves queues between them by their load.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use flowstone_block::mutant;
use tracing::{debug, warn};

use super::balance::{Move, QueueLoad, Spread, place, plan, restless};
use super::load_watch::{LoadWatch, Look};
use super::report::PollerReport;
use crate::CpuList;
use crate::counters::QueueCounters;
use crate::cpu_budget::ProcessBudget;
use crate::numa::Topology;
use crate::poller::{Activity, NotRun, Orders, PollerOptions, PollerThread, RunningQueue};
use crate::queue_run::{Part, QueueSpec};

/// Looks for which a queue that has moved stays: its load has to be learnt anew.
const STAY_LOOKS: u32 = 5;
/// Less than that, in CPUs, is no load.
const IDLE: f64 = 0.001;

/// With this in the environment of a build for tests, a queue moves at every look.
const RESTLESS: &str = "FLOWSTONE_RESTLESS_QUEUES";

/// Pollers that all queues share.
pub struct Balancer {
    shared: Arc<Shared>,
    _watch: LoadWatch,
}

struct Shared {
    spread: Spread,
    topology: Topology,
    /// Of each poller: the CPUs that it stays on.
    cpus: Vec<CpuList>,
    /// Of each poller: its node, where that matters.
    nodes: Vec<Option<u32>>,
    budget: Option<Arc<ProcessBudget>>,
    activity: Arc<Activity>,
    is_restless: bool,
    /// Started when they are needed, without the lock: that waits for a thread.
    pollers: Vec<OnceLock<PollerThread>>,
    state: Mutex<State>,
}

/// The queues that run.
#[derive(Default)]
struct State(Vec<Known>);

/// A queue that runs, as far as its load is known.
struct Known {
    orders: Weak<Orders>,
    counters: Arc<QueueCounters>,
    /// What it has done, in nanoseconds.
    work_ns: fn(&QueueCounters) -> u64,
    /// ... at the last look.
    done_ns: u64,
    /// Whether it may run elsewhere at all.
    is_movable: bool,
    /// The node of its guest's memory, where that matters.
    home: Option<u32>,
    /// Smoothed, in CPUs.
    load: f64,
    /// Looks for which it stays where it is.
    stays: u32,
}

impl Balancer {
    /// For at most so many pollers.
    pub fn start(
        pollers: usize,
        spread: Spread,
        cpus: &CpuList,
        topology: Topology,
        budget: Option<Arc<ProcessBudget>>,
        activity: Arc<Activity>,
    ) -> io::Result<Self> {
        let cpus_of = |index| {
            let named = cpus.for_thread(index).map(CpuList::from);
            named.unwrap_or_else(|| topology.spread(index))
        };
        let cpus: Vec<CpuList> = (0..pollers).map(cpus_of).collect();
        let matters = topology.matters();
        let node_of = |cpus| topology.node_of_all(cpus).filter(|_| matters);
        let nodes = cpus.iter().map(node_of).collect();
        let pollers = (0..pollers).map(|_| OnceLock::new()).collect();
        let shared = Arc::new(Shared {
            spread,
            topology,
            cpus,
            nodes,
            budget,
            activity: Arc::clone(&activity),
            is_restless: cfg!(debug_assertions) && std::env::var_os(RESTLESS).is_some(),
            pollers,
            state: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let look = move |look| theirs.look(look);
        let watch = LoadWatch::start("balancer", activity, look)?;
        Ok(Self { shared, _watch: watch })
    }

    /// The CPUs of which one could run the second half of a queue: of all pollers, if there are
    /// several. An empty list is all that the process may use.
    pub fn cpus_of_second(&self) -> Option<CpuList> {
        let cpus = &self.shared.cpus;
        (cpus.len() > 1).then(|| cpus.iter().flat_map(CpuList::iter).collect())
    }

    /// Runs a queue, or a half of one, on one of them; `home` is the node of its guest's memory,
    /// where that matters. A half stays where it is, if possible on another poller than its other
    /// half, which `beside` is.
    pub fn run(
        &self,
        part: Part,
        spec: QueueSpec,
        home: Option<u32>,
        beside: Option<&Arc<Orders>>,
    ) -> Result<RunningQueue, NotRun<Part>> {
        let (is_movable, work_ns) = (part.is_movable(), part.work_ns());
        let counters = Arc::clone(&spec.counters);
        let (mut state, poller) = match self.shared.place(home, beside) {
            Ok(placed) => placed,
            Err(error) => return Err(NotRun { error, queue: Some(part) }),
        };
        let starting = poller.hand_over(part, spec)?;
        let (orders, done_ns) = (Arc::downgrade(starting.orders()), work_ns(&counters));
        let (load, stays) = (0.0, 0);
        let known = Known { orders, counters, work_ns, done_ns, is_movable, home, load, stays };
        state.0.push(known);
        let held = mutant("runner.balancer.waits-with-its-lock").then_some(state);
        let running = starting.wait();
        drop(held);
        running
    }

    /// What each has done.
    pub fn report(&self) -> Vec<PollerReport> {
        let Shared { cpus, topology, pollers, .. } = &*self.shared;
        let report = |(poller, cpus): (&OnceLock<PollerThread>, _)| {
            Some(PollerReport::of(cpus, topology, &poller.get()?.inbox().counters))
        };
        pollers.iter().zip(cpus).filter_map(report).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a new queue runs: on a poller that has been started. The lock is kept, so that the
    /// next queue finds this one there.
    fn place(
        &self,
        home: Option<u32>,
        beside: Option<&Arc<Orders>>,
    ) -> io::Result<(MutexGuard<'_, State>, &PollerThread)> {
        loop {
            let mut state = self.state();
            state.forget_ended();
            let (mut loads, mut spread) = (state.loads(), self.spread);
            if let Some(beside) = beside {
                // Two pollers are what this form is for.
                spread = Spread::All;
                let (other, _) = beside.place();
                loads.iter_mut().filter(|it| it.poller == other).for_each(|it| it.load += 1.0);
            }
            let at = place(home, &loads, &self.nodes, spread);
            if let Some(poller) = self.pollers[at].get() {
                return Ok((state, poller));
            }
            drop(state);
            self.start(at)?;
        }
    }

    /// Starts the poller with this index, unless another thread does.
    fn start(&self, index: usize) -> io::Result<()> {
        let (cpus, budget) = (self.cpus[index].clone(), self.budget.clone());
        let activity = Arc::clone(&self.activity);
        let options = PollerOptions { index, cpus, budget, is_shared: true, activity };
        let _ = self.pollers[index].set(PollerThread::spawn(format!("poller{index}"), options)?);
        Ok(())
    }

    /// Returns whether there was any load, or a move.
    fn look(&self, look: Look) -> bool {
        let mut state = self.state();
        let load = state.measure(look.time);
        let moved = !look.is_stale && self.balance(state);
        load >= IDLE || moved
    }

    /// Moves a queue if one should be elsewhere. Returns whether that is so.
    fn balance(&self, mut state: MutexGuard<'_, State>) -> bool {
        let loads = state.loads();
        let next = match self.is_restless {
            true => restless(&loads, self.nodes.len()),
            false => plan(&loads, &self.nodes, self.spread),
        };
        let Some(Move { queue, to }) = next else { return false };
        let Some(poller) = self.pollers[to].get() else {
            drop(state);
            // The next look moves the queue.
            let started =
                self.start(to).inspect_err(|error| warn!(%error, "cannot start a poller"));
            return started.is_ok();
        };
        let known = &mut state.0[queue];
        known.stays = STAY_LOOKS;
        if let Some(orders) = known.orders.upgrade() {
            let load = known.load;
            debug!(from = loads[queue].poller, to, load, "a queue moves to another poller");
            orders.move_to(poller.inbox());
        }
        true
    }
}

impl State {
    fn forget_ended(&mut self) {
        self.0.retain(|queue| queue.orders.strong_count() > 0);
    }

    /// Learns what queues have done in the time that has gone by. Returns the sum of it, in CPUs.
    fn measure(&mut self, time: Duration) -> f64 {
        self.forget_ended();
        let mut sum = 0.0;
        for queue in &mut self.0 {
            let done_ns = (queue.work_ns)(&queue.counters);
            let done = done_ns.saturating_sub(queue.done_ns) as f64 / 1e9;
            let load = done / time.as_secs_f64().max(1e-9);
            queue.load = (queue.load + load) / 2.0;
            (queue.done_ns, queue.stays) = (done_ns, queue.stays.saturating_sub(1));
            sum += load;
        }
        sum
    }

    /// The queues in their order here. Those that end meanwhile count as being nowhere in
    /// particular, and do nothing.
    fn loads(&self) -> Vec<QueueLoad> {
        let load = |queue: &Known| {
            let (poller, has_no_order) = queue.orders.upgrade().map_or((0, false), |it| it.place());
            let movable = has_no_order && queue.stays == 0 && queue.is_movable;
            QueueLoad { poller, load: queue.load, movable, home: queue.home }
        };
        self.0.iter().map(load).collect()
    }
}
