//! Pollers that all queues share, and the thread that moves queues between them by their load.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use flowstone_block::mutated;
use tracing::{debug, warn};

use super::balance::{Move, QueueLoad, Spread, place, plan, restless};
use super::load_watch::{LoadWatch, Look};
use super::report::PollerReport;
use crate::CpuList;
use crate::counters::QueueCounters;
use crate::numa::Topology;
use crate::poller::{Orders, PollerOptions, PollerThread, TaskHandle};
use crate::task::{NotRun, Part, QueueSpec};

/// Looks for which a queue that has moved stays: its load has to be measured anew.
const STAY_LOOKS: u32 = 5;
/// Load below which a queue counts as idle, in CPUs.
const IDLE: f64 = 0.001;

/// Environment variable that makes every look move a queue, in builds with debug assertions.
const RESTLESS: &str = "FLOWSTONE_RESTLESS_QUEUES";

/// Pollers that all queues share.
pub struct Balancer {
    shared: Arc<Shared>,
    _watch: LoadWatch,
}

struct Shared {
    spread: Spread,
    topology: Topology,
    /// CPUs of each poller.
    cpus: Vec<CpuList>,
    /// NUMA node of each poller, if that matters.
    nodes: Vec<Option<u32>>,
    /// Settings that all pollers have.
    common: PollerOptions,
    is_restless: bool,
    /// Started on demand, and anew if one has died; outside the lock: that waits for a thread.
    pollers: Vec<Mutex<Option<Arc<PollerThread>>>>,
    state: Mutex<State>,
}

/// The queues that run.
#[derive(Default)]
struct State(Vec<Known>);

/// A running queue and its measured load.
struct Known {
    orders: Weak<Orders>,
    counters: Arc<QueueCounters>,
    /// Reads its time in turns with work from its counters, in nanoseconds.
    work_ns: fn(&QueueCounters) -> u64,
    /// That time at the last look.
    done_ns: u64,
    /// Whether it may run elsewhere at all.
    is_movable: bool,
    /// NUMA node of its guest's memory, if that matters.
    home: Option<u32>,
    /// Smoothed load, in CPUs.
    load: f64,
    /// Remaining looks for which it stays where it is.
    stays: u32,
}

impl Balancer {
    /// Starts the balancer's thread, for at most `pollers` pollers.
    pub fn start(
        pollers: usize,
        spread: Spread,
        cpus: &CpuList,
        topology: Topology,
        common: PollerOptions,
    ) -> io::Result<Self> {
        let cpus_of = |index| {
            let named = cpus.for_thread(index).map(CpuList::from);
            named.unwrap_or_else(|| topology.spread(index))
        };
        let cpus: Vec<CpuList> = (0..pollers).map(cpus_of).collect();
        let matters = topology.matters();
        let node_of = |cpus| topology.node_of_all(cpus).filter(|_| matters);
        let nodes = cpus.iter().map(node_of).collect();
        let pollers = (0..pollers).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared {
            spread,
            topology,
            cpus,
            nodes,
            common: common.clone(),
            is_restless: cfg!(debug_assertions) && std::env::var_os(RESTLESS).is_some(),
            pollers,
            state: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let look = move |look| theirs.look(look);
        let watch = LoadWatch::start("balancer", common.activity, look)?;
        Ok(Self { shared, _watch: watch })
    }

    /// Returns the CPUs that the second half of a queue could use: those of all pollers, if there
    /// are several. An empty list stands for all that the process may use.
    pub fn cpus_of_second(&self) -> Option<CpuList> {
        let cpus = &self.shared.cpus;
        (cpus.len() > 1).then(|| cpus.iter().flat_map(CpuList::iter).collect())
    }

    /// Runs a part on a poller. A half is never moved, and is placed beside its other half,
    /// `beside`, only if no other poller is suitable.
    pub fn run(
        &self,
        part: Box<dyn Part>,
        spec: QueueSpec,
        beside: Option<&Arc<Orders>>,
    ) -> Result<TaskHandle, NotRun> {
        let (is_movable, work_ns) = (part.is_movable(), part.work_ns());
        let (counters, home) = (Arc::clone(&spec.counters), spec.home);
        let (mut state, poller) = match self.shared.place(home, beside) {
            Ok(placed) => placed,
            Err(error) => return Err(NotRun { error, part: Some(part) }),
        };
        let starting = poller.hand_over(part, spec)?;
        let (orders, done_ns) = (Arc::downgrade(starting.orders()), work_ns(&counters));
        let (load, stays) = (0.0, 0);
        let known = Known { orders, counters, work_ns, done_ns, is_movable, home, load, stays };
        state.0.push(known);
        let unlocks = mutated("runner.balancer.waits-with-its-lock", true, false);
        let held = if unlocks {
            drop(state);
            None
        } else {
            Some(state)
        };
        let running = starting.wait();
        drop(held);
        running
    }

    /// Returns the counters of each started poller.
    pub fn report(&self) -> Vec<PollerReport> {
        let Shared { cpus, topology, .. } = &*self.shared;
        let report = |(at, cpus)| {
            let poller = self.shared.poller(at)?;
            Some(PollerReport::of(cpus, topology, &poller.inbox().counters))
        };
        cpus.iter().enumerate().filter_map(report).collect()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a started poller for a new queue, with the lock, so that placing the next queue
    /// counts this one.
    fn place(
        &self,
        home: Option<u32>,
        beside: Option<&Arc<Orders>>,
    ) -> io::Result<(MutexGuard<'_, State>, Arc<PollerThread>)> {
        loop {
            let mut state = self.state();
            state.forget_ended();
            let (mut loads, mut spread) = (state.loads(), self.spread);
            if let Some(beside) = beside {
                // The split form is for using two pollers.
                spread = Spread::All;
                let (other, _) = beside.place();
                loads.iter_mut().filter(|it| it.poller == other).for_each(|it| it.load += 1.0);
            }
            let at = place(home, &loads, &self.nodes, spread);
            if let Some(poller) = self.poller(at) {
                return Ok((state, poller));
            }
            drop(state);
            self.start(at)?;
        }
    }

    fn place_of(&self, index: usize) -> MutexGuard<'_, Option<Arc<PollerThread>>> {
        self.pollers[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the poller with this index, if it runs.
    fn poller(&self, index: usize) -> Option<Arc<PollerThread>> {
        self.place_of(index).clone().filter(runs)
    }

    /// Starts the poller with this index, unless another thread has.
    fn start(&self, index: usize) -> io::Result<()> {
        let cpus = self.cpus[index].clone();
        let options = PollerOptions { index, cpus, is_shared: true, ..self.common.clone() };
        let started = Arc::new(PollerThread::spawn(format!("poller{index}"), options)?);
        let mut place = self.place_of(index);
        let other =
            if place.as_ref().is_some_and(runs) { Some(started) } else { place.replace(started) };
        // A drop joins the thread.
        drop(place);
        drop(other);
        Ok(())
    }

    /// Measures loads and moves a queue if needed. Returns whether there was load or a move.
    fn look(&self, look: Look) -> bool {
        let mut state = self.state();
        let load = state.measure(look.time);
        let moved = !look.is_stale && self.balance(state);
        load >= IDLE || moved
    }

    /// Moves a queue if one should run elsewhere. Returns whether that is so.
    fn balance(&self, mut state: MutexGuard<'_, State>) -> bool {
        let loads = state.loads();
        let next = match self.is_restless {
            true => restless(&loads, self.nodes.len()),
            false => plan(&loads, &self.nodes, self.spread),
        };
        let Some(Move { queue, to }) = next else { return false };
        let Some(poller) = self.poller(to) else {
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

fn runs(poller: &Arc<PollerThread>) -> bool {
    mutated("runner.balancer.uses-dead-pollers", !poller.inbox().has_ended(), true)
}

impl State {
    fn forget_ended(&mut self) {
        self.0.retain(|queue| queue.orders.strong_count() > 0);
    }

    /// Updates each queue's load from its work in `time`. Returns the total, in CPUs.
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

    /// Returns the load of each queue, in the order of this list. Queues that end meanwhile are
    /// reported on poller 0 and not movable.
    fn loads(&self) -> Vec<QueueLoad> {
        let load = |queue: &Known| {
            let (poller, has_no_order) = queue.orders.upgrade().map_or((0, false), |it| it.place());
            let movable = has_no_order && queue.stays == 0 && queue.is_movable;
            QueueLoad { poller, load: queue.load, movable, home: queue.home }
        };
        self.0.iter().map(load).collect()
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::SectorCount;
    use flowstone_layers::Null;

    use super::*;
    use crate::PollMode;
    use crate::fake_guest::{Asks, FakeGuest, spec_of};

    /// Regression: no queue could start any more until the daemon was restarted.
    #[test]
    fn a_poller_that_has_died_is_started_anew() {
        let (cpus, topology) = (CpuList::default(), Topology::of_host());
        let common = PollerOptions::default();
        let start = Balancer::start(1, Spread::AsNeeded, &cpus, topology, common);
        let balancer = start.unwrap();
        for _ in 0..3 {
            let (_guest, queue) = FakeGuest::new(Asks::Flush);
            let spec = spec_of(Arc::new(Null::new(SectorCount::new(1 << 12))), PollMode::Auto);
            let running = balancer.run(Box::new(queue), spec, None).unwrap();
            assert_eq!(balancer.report().len(), 1);
            assert!(running.stop().is_some());
            balancer.shared.poller(0).unwrap().die_for_test();
        }
        assert_eq!(balancer.report().len(), 0);
    }
}
