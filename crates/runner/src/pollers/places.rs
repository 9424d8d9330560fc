//! Placement of queues: on threads of their own, or on shared pollers.

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

/// The pollers that queues are placed on.
pub(super) struct Places {
    /// Settings that all pollers have.
    common: PollerOptions,
    /// The shared pollers, for queues without CPUs of their own; `None` if each queue has threads.
    shared: Option<Balancer>,
    pub topology: Topology,
    pub activity: Arc<Activity>,
    /// The live pollers that belong to one queue each, with their CPUs.
    known: Mutex<Vec<(CpuList, Weak<Inbox>)>>,
}

/// Settings for a queue with threads of its own.
pub struct OwnThreads {
    /// Name of the first thread.
    pub name: String,
    /// CPUs that they are pinned to, if configured: then the queue runs on no shared poller.
    /// Otherwise those near the guest's memory.
    pub cpus: [Option<usize>; 2],
}

/// A queue's settings for being placed.
pub(super) struct Wanted<'a> {
    pub spec: &'a QueueSpec,
    pub own: &'a OwnThreads,
    /// NUMA node of its guest's memory, if that matters.
    pub home: Option<u32>,
}

impl Places {
    /// Makes the places; starts no poller thread yet.
    pub fn new(config: &PollersConfig) -> io::Result<Self> {
        let budget = config.budget.map(|share| Arc::new(ProcessBudget::new(share)));
        let common = PollerOptions { budget, nice: config.nice, ..PollerOptions::default() };
        let topology = Topology::of_host();
        let cpus = config.cpus.clone().unwrap_or_default();
        let shared = |count, spread| {
            Balancer::start(count, spread, &cpus, topology.clone(), common.clone()).map(Some)
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
        let activity = Arc::clone(&common.activity);
        Ok(Self { common, shared, topology, activity, known: Mutex::default() })
    }

    /// Runs a queue: on its own threads, as `wanted` says, or on shared ones. Returns it on
    /// failure.
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
        // The back first: the front hands its work to it.
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

    /// Runs a part; `beside` is the other half, if that runs already.
    fn place(
        &self,
        part: Part,
        wanted: &Wanted<'_>,
        beside: Option<&Arc<Orders>>,
        threads: &mut Vec<PollerThread>,
    ) -> Result<RunningQueue, NotRun<Part>> {
        let spec = wanted.spec.clone();
        if let Some(shared) = self.shared_for(wanted) {
            return shared.run(part, spec, wanted.home, beside);
        }
        let (number, own) = (threads.len(), wanted.own);
        let cpus = own.cpus[number].map_or_else(|| self.near(wanted.home), CpuList::from);
        let options = PollerOptions { cpus: cpus.clone(), ..self.common.clone() };
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

    fn shared_for(&self, wanted: &Wanted<'_>) -> Option<&Balancer> {
        self.shared.as_ref().filter(|_| wanted.own.cpus[0].is_none())
    }

    fn near(&self, home: Option<u32>) -> CpuList {
        home.map(|node| self.topology.threads_near(node)).unwrap_or_default()
    }

    /// Returns the CPUs that a second thread of the queue could use, `None` if that is only the
    /// first one's: an empty list stands for all that the process may use.
    pub fn cpus_of_second(&self, wanted: &Wanted<'_>) -> Option<CpuList> {
        if let Some(shared) = self.shared_for(wanted) {
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

    /// Returns the counters of every live poller.
    pub fn report(&self) -> Vec<PollerReport> {
        let mut report = self.shared.as_ref().map_or_else(Vec::new, Balancer::report);
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let living = known.iter().filter_map(|(cpus, inbox)| Some((cpus, inbox.upgrade()?)));
        report.extend(
            living.map(|(cpus, inbox)| PollerReport::of(cpus, &self.topology, &inbox.counters)),
        );
        report
    }
}
