//! Placement of queues: on threads of their own, or on shared pollers.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::balance::Spread;
use super::balancer::Balancer;
use super::form::{Form, QueueTasks};
use super::report::PollerReport;
use super::{POLLERS_MAX, PollerChoice, PollersConfig};
use crate::CpuList;
use crate::cpu_budget::ProcessBudget;
use crate::numa::Topology;
use crate::poller::{Activity, Inbox, Orders, PollerOptions, PollerThread, TaskHandle};
use crate::task::{NotRun, Part, QueueSpec};

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

    /// Runs a queue on its own threads or on shared ones. Returns it on failure.
    pub fn run(
        &self,
        form: Form,
        queue: Box<dyn Part>,
        spec: &QueueSpec,
    ) -> Result<QueueTasks, NotRun> {
        let mut threads = Vec::new();
        if form == Form::Fused {
            let first = self.place(queue, spec, None, &mut threads)?;
            return Ok(QueueTasks { first, back: None, threads });
        }
        let [front, back] = queue.split().expect("a whole queue has halves");
        // The back first: the front hands its work to it.
        let back = match self.place(back, spec, None, &mut threads) {
            Ok(back) => back,
            Err(NotRun { error, part }) => {
                return Err(NotRun { error, part: part.and_then(|back| front.join(back)) });
            }
        };
        match self.place(front, spec, Some(back.orders()), &mut threads) {
            Ok(first) => Ok(QueueTasks { first, back: Some(back), threads }),
            Err(NotRun { error, part }) => {
                let halves = part.zip(back.stop());
                Err(NotRun { error, part: halves.and_then(|(front, back)| front.join(back)) })
            }
        }
    }

    /// Runs a part; `beside` is the other half, if that runs already.
    fn place(
        &self,
        part: Box<dyn Part>,
        spec: &QueueSpec,
        beside: Option<&Arc<Orders>>,
        threads: &mut Vec<PollerThread>,
    ) -> Result<TaskHandle, NotRun> {
        if let Some(shared) = self.shared_for(spec) {
            return shared.run(part, spec.clone(), beside);
        }
        let number = threads.len();
        let cpus = spec.cpus[number].map_or_else(|| self.near(spec.home), CpuList::from);
        let options = PollerOptions { cpus: cpus.clone(), ..self.common.clone() };
        let name = if number == 0 { spec.name.clone() } else { format!("{}/front", spec.name) };
        let thread = match PollerThread::spawn(name, options) {
            Ok(thread) => thread,
            Err(error) => return Err(NotRun { error, part: Some(part) }),
        };
        self.remember(cpus, thread.inbox());
        let queue = thread.assign(part, spec.clone())?;
        threads.push(thread);
        Ok(queue)
    }

    fn shared_for(&self, spec: &QueueSpec) -> Option<&Balancer> {
        self.shared.as_ref().filter(|_| spec.cpus[0].is_none())
    }

    fn near(&self, home: Option<u32>) -> CpuList {
        home.map(|node| self.topology.threads_near(node)).unwrap_or_default()
    }

    /// Returns the CPUs that a second thread of the queue could use, `None` if that is only the
    /// first one's: an empty list stands for all that the process may use.
    pub fn cpus_of_second(&self, spec: &QueueSpec) -> Option<CpuList> {
        if let Some(shared) = self.shared_for(spec) {
            return shared.cpus_of_second();
        }
        match spec.cpus {
            [first, Some(second)] if first == Some(second) => None,
            [_, Some(second)] => Some(second.into()),
            [_, None] => Some(self.near(spec.home)),
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
