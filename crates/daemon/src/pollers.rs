//! The threads that run the queues of all disks: one for each queue, or a few that all queues share.

mod balance;
mod balancer;
mod report;

use std::io;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use flowstone_block::mutant;
use flowstone_frontend::vhost_user::VirtQueue;

pub use self::balance::Spread;
use self::balancer::Balancer;
pub use self::report::PollerReport;
use crate::CpuList;
use crate::config::Pipeline;
use crate::cpu_budget::{CpuShare, ProcessBudget};
use crate::halves::{join, split};
use crate::numa::Topology;
use crate::poller::{Inbox, PollerOptions, PollerThread, QueueSpec, RunningQueue};
use crate::queue_run::QueuePart;

/// The most pollers: hosts have hardly more CPUs than that.
const POLLERS_MAX: usize = 256;

/// Which threads run queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollerChoice {
    /// One for each queue: a queue waits for no other one.
    #[default]
    PerQueue,
    /// So many, for all queues.
    Count(usize),
    /// As many as the load asks for, for all queues.
    Auto,
}

impl FromStr for PollerChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("per-queue", _) => Ok(Self::PerQueue),
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count @ 1..=POLLERS_MAX)) => Ok(Self::Count(count)),
            _ => Err(format!(
                "`{text}` is not a choice of pollers; use a number from 1 to {POLLERS_MAX}, auto or per-queue"
            )),
        }
    }
}

/// What the daemon's threads are to be.
#[derive(Clone, Debug, Default)]
pub struct PollersConfig {
    /// How many.
    pub choice: PollerChoice,
    /// The CPUs that shared ones stay on, in turn.
    pub cpus: CpuList,
    /// What the daemon may use of the CPUs.
    pub budget: Option<CpuShare>,
}

/// All pollers of a daemon.
pub struct Pollers {
    budget: Option<Arc<ProcessBudget>>,
    /// Those that queues share; none if each has its own.
    shared: Option<Balancer>,
    topology: Topology,
    /// Every one of a queue of its own that lives, with the CPUs that it stays on.
    known: Mutex<Vec<(CpuList, Weak<Inbox>)>>,
}

/// A queue that runs, and the threads that only it uses, if it has any.
pub struct PlacedQueue {
    // Before the threads: these end when their queues have stopped.
    parts: Parts,
    _threads: Vec<PollerThread>,
}

enum Parts {
    Whole(RunningQueue),
    Split { front: RunningQueue, back: RunningQueue },
}

impl PlacedQueue {
    /// Asks it to take nothing more; does not wait.
    pub fn begin_stop(&self) {
        match &self.parts {
            // The other half is needed until all has come back.
            Parts::Whole(queue) | Parts::Split { front: queue, .. } => queue.begin_stop(),
        }
    }

    /// Waits until nothing is in flight, and gives the queue back; `None` if it has panicked.
    pub fn stop(self) -> Option<VirtQueue> {
        let Self { parts, _threads } = self;
        match parts {
            Parts::Whole(queue) => match queue.stop()? {
                QueuePart::Whole(queue) => Some(*queue),
                _ => None,
            },
            Parts::Split { front, back } => {
                // Both, also if one has panicked: what is in flight uses the guest's memory and ring.
                let front = front.stop();
                if mutant("daemon.pollers.stop-leaves-the-other-half") && front.is_none() {
                    return None;
                }
                let halves = (front, back.stop());
                match halves {
                    (Some(QueuePart::Front(front)), Some(QueuePart::Back(back))) => {
                        join(*front, *back)
                    }
                    _ => None,
                }
            }
        }
    }
}

/// How to run a queue where each has threads of its own.
pub struct OwnThreads {
    /// What the first one is called.
    pub name: String,
    /// The CPUs that they stay on, if the configuration names them. Else they are near the guest's memory.
    pub cpus: [Option<usize>; 2],
}

impl Pollers {
    /// Starts no thread yet.
    pub fn new(config: &PollersConfig) -> io::Result<Self> {
        let budget = config.budget.map(|share| Arc::new(ProcessBudget::new(share)));
        let topology = Topology::of_host();
        let shared = |count, spread| {
            let (topology, budget) = (topology.clone(), budget.clone());
            Balancer::start(count, spread, &config.cpus, topology, budget).map(Some)
        };
        let shared = match config.choice {
            PollerChoice::PerQueue => None,
            PollerChoice::Count(count) => shared(count, Spread::All)?,
            PollerChoice::Auto => {
                let host = std::thread::available_parallelism().map_or(1, Into::into);
                let count = if config.cpus.is_empty() { host } else { config.cpus.len() };
                shared(count.min(POLLERS_MAX), Spread::AsNeeded)?
            }
        };
        Ok(Self { budget, shared, topology, known: Mutex::default() })
    }

    /// Runs a queue: on threads of its own, as `own` says, or on shared ones.
    pub fn run(
        &self,
        queue: VirtQueue,
        spec: QueueSpec,
        own: &OwnThreads,
    ) -> io::Result<PlacedQueue> {
        let home = self.topology.home_of(&queue);
        let mut threads = Vec::new();
        let parts = match spec.pipeline {
            Pipeline::Fused => {
                let whole = QueuePart::Whole(Box::new(queue));
                Parts::Whole(self.place(whole, &spec, home, own, &mut threads)?)
            }
            Pipeline::Split => {
                let (front, back) = split(queue);
                let (front, back) = (Box::new(front), Box::new(back));
                // First what the other half hands its work to.
                let back = self.place(QueuePart::Back(back), &spec, home, own, &mut threads)?;
                let front = self.place(QueuePart::Front(front), &spec, home, own, &mut threads)?;
                Parts::Split { front, back }
            }
        };
        Ok(PlacedQueue { parts, _threads: threads })
    }

    fn place(
        &self,
        part: QueuePart,
        spec: &QueueSpec,
        home: Option<u32>,
        own: &OwnThreads,
        threads: &mut Vec<PollerThread>,
    ) -> io::Result<RunningQueue> {
        let spec = spec.clone();
        if let Some(shared) = &self.shared {
            return shared.run(part, spec, home);
        }
        let near = || home.map(|node| self.topology.cpus_near(node)).unwrap_or_default();
        let number = threads.len();
        let cpus = own.cpus[number].map_or_else(near, CpuList::from);
        let (named, budget) = (cpus.clone(), self.budget.clone());
        let options = PollerOptions { cpus: named, budget, ..Default::default() };
        let name = if number == 0 { own.name.clone() } else { format!("{}/front", own.name) };
        let thread = PollerThread::spawn(name, options)?;
        self.remember(cpus, thread.inbox());
        let queue = thread.assign(part, spec)?;
        threads.push(thread);
        Ok(queue)
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

    /// The host's nodes.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
}

#[cfg(test)]
mod tests;
