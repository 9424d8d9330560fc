//! The classifying layer: sets the class of every read and write on submission, and detects
//! completed writes that change the layout.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, value_parser};
use flowstone_block::{
    Channel, Class, Completion, Extent, Geometry, Layer, NextLook, Op, Origin, PerQueue, Published,
    QueueContext, ReaderWaker, Request, Seen, mutated,
};

use crate::counters::{ClassCount, QueueCounters};
use crate::layout::Layout;
use crate::pattern::queues::{QueueMemory, SharedDetector};
use crate::verdict::{Asked, Rule, judge};
use crate::watcher::{Pace, Watcher};

/// The classifying layer.
pub struct Classify {
    base: Arc<dyn Layer>,
    disk: Arc<DiskClasses>,
}

/// The layout, detector and counters of a disk.
pub struct DiskClasses {
    layout: Arc<Published<Layout>>,
    watcher: Watcher,
    detector: Arc<SharedDetector>,
    counters: PerQueue<QueueCounters>,
    journal_level: u8,
}

struct ClassifyChannel {
    base: Box<dyn Channel>,
    disk: Arc<DiskClasses>,
    layout: Seen<Layout>,
    /// Ends the sleep of its thread when there is a new layout.
    _waker: Arc<ReaderWaker>,
    memory: QueueMemory,
    /// The cached layout and journals are those that the current batch started with.
    is_fresh: bool,
    /// The channel's requests come from a guest.
    is_guests: bool,
    counters: Arc<QueueCounters>,
}

/// What is known of the guest beforehand.
#[derive(Clone, Copy, Debug, Args)]
pub struct ClassifyArgs {
    /// Best-effort priority level, 0 to 7, of the guest's ext4 journal (its mount option
    /// `journal_ioprio`), by which writes to the journal are recognised on encrypted disks
    #[arg(long, value_name = "LEVEL", default_value_t = 3)]
    #[arg(value_parser = value_parser!(u8).range(0..=7))]
    pub journal_ioprio: u8,
}

impl Classify {
    /// Classifies requests to `base`. Where no layout is known, writes of best-effort priority at
    /// `journal_level` are classed as journal.
    pub fn new(base: Arc<dyn Layer>, journal_level: u8) -> Self {
        Self::paced(base, journal_level, Arc::new(|_, _| Duration::ZERO))
    }

    /// As [`new`](Self::new), with the reading of layouts throttled by `pace`.
    pub fn paced(base: Arc<dyn Layer>, journal_level: u8, pace: Pace) -> Self {
        let layout = Arc::new(Published::default());
        let disk = DiskClasses {
            watcher: Watcher::start(Arc::clone(&base), Arc::clone(&layout), pace),
            layout,
            detector: Arc::default(),
            counters: PerQueue::default(),
            journal_level,
        };
        Self { base, disk: Arc::new(disk) }
    }

    /// Returns the state of the disk's classification, for statistics.
    pub fn classes(&self) -> Arc<DiskClasses> {
        Arc::clone(&self.disk)
    }
}

impl DiskClasses {
    /// Returns the current layout.
    pub fn layout(&self) -> Arc<Layout> {
        self.layout.get()
    }

    /// Returns how often the layout has been read.
    pub fn readings(&self) -> u64 {
        self.watcher.readings()
    }

    /// Returns the counts of a class so far.
    pub fn of_class(&self, class: Class) -> ClassCount {
        let sum = |field: usize| self.counters.sum(|queue| &queue.classes[class as usize][field]);
        ClassCount { reads: sum(0), writes: sum(1), bytes_read: sum(2), bytes_written: sum(3) }
    }

    /// Returns the number of requests that a rule decided so far.
    pub fn of_rule(&self, rule: Rule) -> u64 {
        self.counters.sum(|queue| &queue.rules[rule as usize])
    }
}

impl Layer for Classify {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let disk = &self.disk;
        let (counters, memory) = match context.origin {
            Origin::Queue { queue, .. } => {
                (disk.counters.of_queue(queue), QueueMemory::new(&disk.detector, queue))
            }
            // The daemon's own requests come from no guest.
            Origin::Own => (Arc::default(), QueueMemory::new(&Arc::default(), 0)),
        };
        Ok(Box::new(ClassifyChannel {
            base: self.base.channel(context)?,
            // Registered before the first check, so that no newer layout is missed.
            _waker: self.disk.layout.wakes(&context.reactor),
            layout: Seen::of(&self.disk.layout),
            memory,
            is_fresh: false,
            is_guests: matches!(context.origin, Origin::Queue { .. }),
            disk: Arc::clone(&self.disk),
            counters,
        }))
    }
}

impl ClassifyChannel {
    fn classify(&mut self, request: &mut Request, extent: Extent, writes: bool) {
        if !self.is_fresh {
            // Once per batch: accesses memory that other threads write.
            self.layout.look(&self.disk.layout);
            self.memory.refresh();
            self.is_fresh = true;
        }
        let layout = self.layout.last();
        let asked = Asked { extent, writes, priority: request.priority };
        let is_metadata = || moving_metadata(layout, asked, request);
        let memory = &mut self.memory;
        let verdict = judge(layout, self.disk.journal_level, asked, is_metadata, || {
            if writes { memory.wrote(extent) } else { memory.reads_journal(extent) }
        });
        if writes && self.is_guests {
            layout.journals().are_written(extent, request);
        }
        request.class = verdict.class;
        self.counters.count(verdict, writes, extent.bytes());
    }
}

/// Returns the rule that identifies moving metadata. Out of line: most disks have no file system
/// with moving metadata.
#[inline(never)]
fn moving_metadata(layout: &Layout, asked: Asked, request: &Request) -> Option<Rule> {
    let Asked { extent, writes, .. } = asked;
    let has_headers = || writes && layout.trees().are_written(extent, request);
    let is_listed = layout.journals().have_listed(extent);
    is_listed.then_some(Rule::Journal).or_else(|| has_headers().then_some(Rule::Header))
}

impl Channel for ClassifyChannel {
    fn submit(&mut self, mut request: Box<Request>) {
        match request.op {
            Op::Read(extent) => self.classify(&mut request, extent, false),
            Op::Write(extent) => self.classify(&mut request, extent, true),
            Op::Flush => self.memory.flushes(),
            _ => {}
        }
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.is_fresh = false;
        self.base.kick();
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        // This queue may have been idle since the layout was read, and must drop the old one.
        self.layout.look(&self.disk.layout);
        if done.len() == before {
            return;
        }
        for Completion { request, .. } in &done[before..] {
            // A failed write may have changed the disk all the same.
            if request.op.modifies()
                && let Some(extent) = request.op.extent()
            {
                let defines = self.layout.last().is_defined_by(extent);
                let defines =
                    mutated("classify.reap.superblocks-are-not-read-again", defines, false);
                if defines {
                    self.disk.watcher.read_again();
                }
            }
        }
    }

    fn next_look(&mut self) -> NextLook {
        // A layout published before this thread slept has not woken it.
        let is_old = self.layout.is_old(&self.disk.layout);
        let is_old = mutated("classify.next-look.misses-a-layout", is_old, false);
        NextLook::now_if(is_old).min(self.base.next_look())
    }

    fn retire(&mut self) -> bool {
        self.base.retire()
    }
}

#[cfg(test)]
mod tests;
