//! Pollers that all queues share, and the thread that moves queues between them by their load.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
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
use crate::poller::{Activity, Inbox, NotRun, Orders, PollerOptions, PollerThread, RunningQueue};
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
    state: Mutex<State>,
}

struct State {
    /// Started when they are needed.
    pollers: Vec<Option<PollerThread>>,
    queues: Vec<Known>,
}

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
        let pollers = (0..pollers).map(|_| None).collect();
        let shared = Arc::new(Shared {
            spread,
            topology,
            cpus,
            nodes,
            budget,
            activity: Arc::clone(&activity),
            is_restless: cfg!(debug_assertions) && std::env::var_os(RESTLESS).is_some(),
            state: Mutex::new(State { pollers, queues: Vec::new() }),
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
        let mut state = self.shared.state();
        state.forget_ended();
        let Shared { nodes, spread, .. } = &*self.shared;
        let mut loads = state.loads();
        let (is_movable, work_ns) = (part.is_movable(), part.work_ns());
        let mut spread = *spread;
        if let Some(beside) = beside {
            // Two pollers are what this form is for.
            spread = Spread::All;
            let (other, _) = beside.place();
            loads.iter_mut().filter(|it| it.poller == other).for_each(|it| it.load += 1.0);
        }
        let at = place(home, &loads, nodes, spread);
        let counters = Arc::clone(&spec.counters);
        let starting = match self.shared.poller(&mut state, at) {
            Ok(poller) => poller.hand_over(part, spec)?,
            Err(error) => return Err(NotRun { error, queue: Some(part) }),
        };
        let (orders, done_ns) = (Arc::downgrade(starting.orders()), work_ns(&counters));
        let (load, stays) = (0.0, 0);
        let known = Known { orders, counters, work_ns, done_ns, is_movable, home, load, stays };
        state.queues.push(known);
        let held = mutant("runner.balancer.waits-with-its-lock").then_some(state);
        let running = starting.wait();
        drop(held);
        running
    }

    /// What each has done.
    pub fn report(&self) -> Vec<PollerReport> {
        let state = self.shared.state();
        let report = |(index, poller): (usize, &Option<PollerThread>)| {
            let inbox = poller.as_ref()?.inbox();
            let (cpus, topology) = (&self.shared.cpus[index], &self.shared.topology);
            Some(PollerReport::of(cpus, topology, &inbox.counters))
        };
        state.pollers.iter().enumerate().filter_map(report).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The poller with this index, started if it is needed for the first time.
    fn poller<'a>(&self, state: &'a mut State, index: usize) -> io::Result<&'a PollerThread> {
        let slot = &mut state.pollers[index];
        if slot.is_none() {
            let (cpus, budget) = (self.cpus[index].clone(), self.budget.clone());
            let activity = Arc::clone(&self.activity);
            let options = PollerOptions { index, cpus, budget, is_shared: true, activity };
            *slot = Some(PollerThread::spawn(format!("poller{index}"), options)?);
        }
        Ok(slot.as_ref().expect("made above"))
    }

    /// Returns whether there was any load, or a move.
    fn look(&self, look: Look) -> bool {
        let mut state = self.state();
        let load = state.measure(look.time);
        let moved = !look.is_stale && self.balance(&mut state);
        load >= IDLE || moved
    }

    /// Moves a queue if one should be elsewhere. Returns whether that is so.
    fn balance(&self, state: &mut State) -> bool {
        let loads = state.loads();
        let next = match self.is_restless {
            true => restless(&loads, self.nodes.len()),
            false => plan(&loads, &self.nodes, self.spread),
        };
        let Some(Move { queue, to }) = next else { return false };
        let inbox: Arc<Inbox> = match self.poller(state, to) {
            Ok(poller) => Arc::clone(poller.inbox()),
            Err(error) => {
                warn!(%error, "cannot start another poller");
                return false;
            }
        };
        let known = &mut state.queues[queue];
        known.stays = STAY_LOOKS;
        if let Some(orders) = known.orders.upgrade() {
            let load = known.load;
            debug!(from = loads[queue].poller, to, load, "a queue moves to another poller");
            orders.move_to(&inbox);
        }
        true
    }
}

impl State {
    fn forget_ended(&mut self) {
        self.queues.retain(|queue| queue.orders.strong_count() > 0);
    }

    /// Learns what queues have done in the time that has gone by. Returns the sum of it, in CPUs.
    fn measure(&mut self, time: Duration) -> f64 {
        self.forget_ended();
        let mut sum = 0.0;
        for queue in &mut self.queues {
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
        self.queues.iter().map(load).collect()
    }
}
