//! The threads that run the queues of all disks: one per queue, or a few shared by all queues.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

mod balance;
mod balancer;
mod form;
mod form_changer;
mod form_choice;
mod load_watch;
mod places;
mod report;
mod running_queue;

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::Builder;

use clap::{Args, ValueEnum};
use flowstone_block::{Error, GuestQueue, Throttle};

use self::form::Form;
use self::form_changer::FormChanger;
use self::places::Places;
pub use self::report::PollerReport;
pub use self::running_queue::QueueHandle;
use crate::CpuList;
use crate::cpu_budget::CpuShare;
use crate::cpus::set_niceness_of_this_thread;
use crate::numa::Topology;
use crate::queue::Whole;
use crate::task::QueueSpec;

const NICE_ADVICE: &str = "give the daemon CAP_SYS_NICE, or its unit LimitNICE=";

/// The most pollers: hosts hardly have more CPUs.
const POLLERS_MAX: usize = 256;

/// The threads that run queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollerChoice {
    /// One for each queue: no queue waits for another.
    PerQueue,
    /// This many, shared by all queues.
    Count(usize),
    /// As many as the load requires, shared by all queues.
    #[default]
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

/// Number of threads of a queue (S2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Pipeline {
    /// One thread does everything
    #[default]
    Fused,
    /// One thread takes requests from the guest, another one submits and completes them
    Split,
    /// The form with the higher rate, measured while the queue runs
    Auto,
}

/// Options of the daemon's threads.
#[derive(Clone, Debug, Default, Args)]
pub struct PollersConfig {
    /// Threads that run queues: auto (shared by all queues, which move between them, their number
    /// by load), N (N shared threads), per-queue (one for each)
    #[arg(long = "pollers", id = "pollers", value_name = "N|auto|per-queue")]
    #[arg(default_value = "auto")]
    pub choice: PollerChoice,
    /// Pin shared pollers to these CPUs in turn; --pollers auto starts at most as many
    #[arg(long = "poller-cpus", id = "poller_cpus", value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Niceness of the threads that run queues, -20 to 19: below 0 their latency beside busy
    /// processes is lower; takes CAP_SYS_NICE, or LimitNICE= of the unit [default: the daemon's]
    #[arg(long = "poller-nice", id = "poller_nice", value_name = "N")]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i8).range(-20..=19))]
    pub nice: Option<i8>,
    /// Maximum CPU time of the daemon, e.g. 50% (of one CPU) or 150% [default: no limit]
    #[arg(long = "cpu-budget", id = "cpu_budget", value_name = "PERCENT")]
    pub budget: Option<CpuShare>,
}

impl PollersConfig {
    /// Returns what is wrong and what to do, if options contradict each other.
    pub fn check(&self) -> Result<(), (&'static str, &'static str)> {
        if self.cpus.is_some() && self.choice == PollerChoice::PerQueue {
            return Err((
                "--poller-cpus pins shared pollers, and --pollers per-queue has none",
                "give a disk --cpus, or choose other pollers",
            ));
        }
        Ok(())
    }
}

/// All pollers of a daemon.
pub struct Pollers {
    places: Arc<Places>,
    forms: FormChanger,
}

impl Pollers {
    /// Makes the pollers; starts no thread of theirs yet. Fails if their niceness is refused.
    pub fn new(config: &PollersConfig) -> flowstone_block::Result<Self> {
        let host = |error| Error::host("the pollers", error, "free resources");
        if let Some(nice) = config.nice {
            let tried = Builder::new().spawn(move || set_niceness_of_this_thread(nice));
            let refused = |error| Error::host(format!("poller-nice {nice}"), error, NICE_ADVICE);
            tried.map_err(host)?.join().unwrap_or(Ok(())).map_err(refused)?;
        }
        let places = Places::new(config).map_err(host)?;
        Ok(Self { places: Arc::new(places), forms: FormChanger::default() })
    }

    /// Runs a queue: on its own threads, or on shared ones.
    pub fn run<Q: GuestQueue, T: Throttle>(
        &self,
        whole: Whole<Q, T>,
        spec: QueueSpec,
        pipeline: Pipeline,
    ) -> io::Result<QueueHandle> {
        // A queue that is bound to its thread is always fused.
        let pipeline = if Q::IS_MOVABLE { pipeline } else { Pipeline::Fused };
        let form = if pipeline == Pipeline::Split { Form::Split } else { Form::Fused };
        let queue = QueueHandle::run(Arc::clone(&self.places), form, Box::new(whole), spec)?;
        if pipeline == Pipeline::Auto {
            self.forms.add(&queue.0, &self.places.activity)?;
        }
        Ok(queue)
    }

    /// Returns the counters of every live poller.
    pub fn report(&self) -> Vec<PollerReport> {
        self.places.report()
    }

    /// Returns the host's NUMA topology.
    pub fn topology(&self) -> &Topology {
        &self.places.topology
    }
}

#[cfg(test)]
mod tests;
