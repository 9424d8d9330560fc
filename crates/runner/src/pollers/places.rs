//! Where queues run: on threads of their own, or on pollers that all queues share.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::balance::Spread;
use super::balancer::Balancer;
use super::placed::{Form, Placed};
use super::report::PollerReport;
use super::{POLLERS_MAX, PollerChoice, PollersConfig};
use crate::CpuList;
use crate::cpu_budget::ProcessBudget;
use crate::numa::Topology;
use crate::poller::{Activity, Inbox, NotRun, Orders, PollerOptions, PollerThread, RunningQueue};
use crate::queue_run::{Part, QueueSpec};

/// See the module.
pub(super) struct Places {
    budget: Option<Arc<ProcessBudget>>,
    /// Those that queues share; none if each has its own.
    shared: Option<Balancer>,
    pub topology: Topology,
    pub activity: Arc<Activity>,
    /// Every one of a queue of its own that lives, with the CPUs that it stays on.
    known: Mutex<Vec<(CpuList, Weak<Inbox>)>>,
}

/// How to run a queue where each has threads of its own.
pub struct OwnThreads {
    /// What the first one is called.
    pub name: String,
    /// The CPUs that they stay on, if the configuration names them. Else they are near the guest's
    /// memory.
    pub cpus: [Option<usize>; 2],
}

/// A queue, and how it is to run.
pub(super) struct Wanted<'a> {
    pub spec: &'a QueueSpec,
    pub own: &'a OwnThreads,
    /// The node of its guest's memory, where that matters.
    pub home: Option<u32>,
}

impl Places {
    /// Starts no poller yet.
    pub fn new(config: &PollersConfig) -> io::Result<Self> {
        let budget = config.budget.map(|share| Arc::new(ProcessBudget::new(share)));
        let (topology, activity) = (Topology::of_host(), Arc::<Activity>::default());
        let cpus = config.cpus.clone().unwrap_or_default();
        let shared = |count, spread| {
            let (topology, budget) = (topology.clone(), budget.clone());
            let activity = Arc::clone(&activity);
            Balancer::start(count, spread, &cpus, topology, budget, activity).map(Some)
        };
        let shared = match config.choice {
            PollerChoice::PerQueue => None,
            PollerChoice::Count(count) => shared(count, Spread::All)?,
            PollerChoice::Auto => {
                let host = std::thread::available_parallelism().map_or(1, Into::into);
                let count = if cpus.is_empty() { host } else { cpus.len() };
                shared(count.min(POLLERS_MAX), Spread::AsNeeded)?
            }
        };
        Ok(Self { budget, shared, topology, activity, known: Mutex::default() })
    }

    /// Runs a queue: on threads of its own, as it is wanted, or on shared ones. It comes back if
    /// that fails.
    pub fn run(
        &self,
        form: Form,
        queue: Part,
        wanted: &Wanted<'_>,
    ) -> Result<Placed, NotRun<Part>> {
        let mut threads = Vec::new();
        if form == Form::Fused {
            let queue = self.place(queue, wanted, None, &mut threads)?;
            return Ok(Placed { queue, back: None, threads });
        }
        let [front, back] = queue.split().expect("a whole queue has halves");
        // First what the other half hands its work to.
        let back = match self.place(back, wanted, None, &mut threads) {
            Ok(back) => back,
            Err(NotRun { error, queue }) => {
                return Err(NotRun { error, queue: queue.and_then(|back| front.join(back)) });
            }
        };
        match self.place(front, wanted, Some(back.orders()), &mut threads) {
            Ok(queue) => Ok(Placed { queue, back: Some(back), threads }),
            Err(NotRun { error, queue }) => {
                let halves = queue.zip(back.stop());
                Err(NotRun { error, queue: halves.and_then(|(front, back)| front.join(back)) })
            }
        }
    }

    /// `beside` is the other half, if that runs already.
    fn place(
        &self,
        part: Part,
        wanted: &Wanted<'_>,
        beside: Option<&Arc<Orders>>,
        threads: &mut Vec<PollerThread>,
    ) -> Result<RunningQueue, NotRun<Part>> {
        let spec = wanted.spec.clone();
        if let Some(shared) = &self.shared {
            return shared.run(part, spec, wanted.home, beside);
        }
        let (number, own) = (threads.len(), wanted.own);
        let cpus = own.cpus[number].map_or_else(|| self.near(wanted.home), CpuList::from);
        let (activity, budget) = (Arc::clone(&self.activity), self.budget.clone());
        let options = PollerOptions { cpus: cpus.clone(), budget, activity, ..Default::default() };
        let name = if number == 0 { own.name.clone() } else { format!("{}/front", own.name) };
        let thread = match PollerThread::spawn(name, options) {
            Ok(thread) => thread,
            Err(error) => return Err(NotRun { error, queue: Some(part) }),
        };
        self.remember(cpus, thread.inbox());
        let queue = thread.assign(part, spec)?;
        threads.push(thread);
        Ok(queue)
    }

    fn near(&self, home: Option<u32>) -> CpuList {
        home.map(|node| self.topology.cpus_near(node)).unwrap_or_default()
    }

    /// The CPUs of which one could run a second thread of the queue, and none if that would be the
    /// first one's: an empty list is all that the process may use.
    pub fn cpus_of_second(&self, wanted: &Wanted<'_>) -> Option<CpuList> {
        if let Some(shared) = &self.shared {
            return shared.cpus_of_second();
        }
        match wanted.own.cpus {
            [first, Some(second)] if first == Some(second) => None,
            [_, Some(second)] => Some(second.into()),
            [_, None] => Some(self.near(wanted.home)),
        }
    }

    fn remember(&self, cpus: CpuList, inbox: &Arc<Inbox>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, inbox)| inbox.strong_count() > 0);
        known.push((cpus, Arc::downgrade(inbox)));
    }

    /// What every poller that lives has done.
    pub fn report(&self) -> Vec<PollerReport> {
        if let Some(shared) = &self.shared {
            return shared.report();
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let living = known.iter().filter_map(|(cpus, inbox)| Some((cpus, inbox.upgrade()?)));
        living
            .map(|(cpus, inbox)| PollerReport::of(cpus, &self.topology, &inbox.counters))
            .collect()
    }
}
