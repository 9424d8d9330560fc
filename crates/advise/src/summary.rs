//! Statistics of a trace.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use flowstone_trace::{Event, Kind, Trace};

/// Shortest duration from which rates per day are derived.
const DURATION_MIN: Duration = Duration::from_secs(1);

/// Statistics of a trace.
#[derive(Debug, Default)]
pub struct Summary {
    pub writes: u64,
    /// Accesses not known to be a read or a write.
    pub accesses: u64,
    /// Discards and write-zeroes.
    pub trims: u64,
    pub written_bytes: u64,
    /// Blocks of 4 KiB written, counted at each write.
    block_writes: u64,
    /// Blocks written, each counted once.
    blocks_written: u64,
    /// Bytes present at the start, if the trace has them.
    pub present_bytes: Option<u64>,
    /// Time from the first request to the last, if the trace has times.
    pub duration: Option<Duration>,
    /// Requests in the busiest second.
    pub busiest_second: Option<u64>,
}

impl Summary {
    pub fn of(trace: &Trace) -> Self {
        let mut summary = Self::default();
        let (mut written, mut seconds) = (HashSet::new(), HashMap::<u64, u64>::new());
        let mut times: Option<(Duration, Duration)> = None;
        for event in &trace.events {
            if event.kind == Kind::Present {
                let present = summary.present_bytes.get_or_insert(0);
                *present = present.saturating_add(event.bytes);
                continue;
            }
            if event.kind == Kind::Write {
                written.extend(event.blocks());
            }
            summary.count(event);
            if let Some(at) = event.at {
                *seconds.entry(at.as_secs()).or_default() += 1;
                let (first, last) = times.unwrap_or((at, at));
                times = Some((first.min(at), last.max(at)));
            }
        }
        summary.blocks_written = written.len() as u64;
        let duration = times.map(|(first, last)| last - first).filter(|it| *it >= DURATION_MIN);
        summary.duration = duration;
        summary.busiest_second = duration.and_then(|_| seconds.into_values().max());
        summary
    }

    fn count(&mut self, event: &Event) {
        match event.kind {
            Kind::Write => {
                self.writes += 1;
                self.written_bytes += event.bytes;
                let blocks = event.blocks();
                self.block_writes += blocks.end - blocks.start;
            }
            Kind::Access => self.accesses += 1,
            Kind::Discard | Kind::WriteZeroes => self.trims += 1,
            Kind::Read | Kind::Flush | Kind::Present => {}
        }
    }

    /// Returns the mean number of writes per written block.
    pub fn writes_per_block(&self) -> f64 {
        self.block_writes as f64 / self.blocks_written.max(1) as f64
    }
}
