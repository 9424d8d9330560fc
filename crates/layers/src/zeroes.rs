//! Turns writes of zeroes into write-zeroes requests, which take no space and move no data.
//!
//! A request is converted as a whole or not at all, as with QEMU: all of its data must be zero, and
//! it must begin and end at the disk's discard granularity, since the host would have to read and
//! write the unaligned ends.
//!
//! The guest may change its memory meanwhile. Each byte is read once, and a zero that was seen is
//! what the disk holds afterwards; the data of an unconverted request is read by the disk itself,
//! later. Either way every byte on the disk is one that its place in memory held between submission
//! and completion, which is all that any disk promises: a device that copies the buffer while it
//! changes mixes old and new in the same way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use flowstone_block::{
    Channel, Completion, Extent, IoVec, Layer, Metric, Op, QueueContext, Request, Token,
    TokenSource, is_whole,
};
use serde::Serialize;
use slab::Slab;

/// The treatment of writes that are all zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DetectZeroes {
    /// Write them
    #[default]
    Off,
    /// Zero their range without moving data; the space stays allocated
    On,
    /// Also give their space back to the host
    Unmap,
}

/// Option of the layer.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ZeroesArgs {
    /// Handling of writes that are all zero
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub detect_zeroes: DetectZeroes,
}

impl ZeroesArgs {
    /// Puts the layer over `base` if it is enabled; returns it with its counters.
    pub fn layer(self, base: Arc<dyn Layer>) -> (Arc<dyn Layer>, Option<Arc<ZeroCounters>>) {
        if self.detect_zeroes == DetectZeroes::Off {
            return (base, None);
        }
        let zeroes = Zeroes::new(base, self.detect_zeroes == DetectZeroes::Unmap);
        let counters = zeroes.counters();
        (Arc::new(zeroes), Some(counters))
    }
}

/// Counts writes found to be all zero. Shared by all queues, and updated for those writes only.
#[derive(Debug, Default, Serialize)]
pub struct ZeroCounters {
    /// Writes.
    pub requests: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
}

impl ZeroCounters {
    /// Their metrics.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::counter(
            "flowstone_detected_zeroes_requests_total",
            "Writes found to be all zero, with --detect-zeroes",
            |it| it.requests.load(Ordering::Relaxed) as f64,
        ),
        Metric::counter(
            "flowstone_detected_zeroes_bytes_total",
            "Bytes of writes found to be all zero",
            |it| it.bytes.load(Ordering::Relaxed) as f64,
        ),
    ];
}

/// The zero-detecting layer.
pub struct Zeroes {
    base: Arc<dyn Layer>,
    unmap: bool,
    counters: Arc<ZeroCounters>,
}

struct ZeroesChannel {
    base: Box<dyn Channel>,
    unmap: bool,
    granularity: u64,
    /// Longer requests are not converted.
    bytes_max: u64,
    counters: Arc<ZeroCounters>,
    /// Writes converted into write-zeroes, to be restored on completion.
    disguised: Slab<Disguised>,
    tokens: TokenSource,
}

/// The state of a converted write.
struct Disguised {
    memory: Vec<IoVec>,
    /// The token that it had before.
    token: Token,
}

impl Zeroes {
    /// Converts writes of zeroes to `base`; with `unmap`, their space is freed.
    pub fn new(base: Arc<dyn Layer>, unmap: bool) -> Self {
        Self { base, unmap, counters: Arc::default() }
    }

    /// Returns the counters, for statistics.
    pub fn counters(&self) -> Arc<ZeroCounters> {
        Arc::clone(&self.counters)
    }
}

impl Layer for Zeroes {
    pass_to_base!(geometry);

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
        let geometry = self.base.geometry();
        Ok(Box::new(ZeroesChannel {
            base: self.base.channel(context)?,
            unmap: self.unmap,
            granularity: u64::from(geometry.discard_granularity_bytes),
            bytes_max: geometry.zeroes_max(),
            counters: Arc::clone(&self.counters),
            disguised: Slab::with_capacity(usize::from(context.depth.0)),
            tokens: TokenSource::new(),
        }))
    }
}

impl ZeroesChannel {
    fn is_suitable(&self, extent: Extent) -> bool {
        extent.bytes() <= self.bytes_max
            && (extent.start_bytes() | extent.bytes()).is_multiple_of(self.granularity)
    }

    fn disguise(&mut self, request: &mut Box<Request>, extent: Extent) {
        let entry = self.disguised.vacant_entry();
        let token = std::mem::replace(&mut request.token, self.tokens.token(entry.key()));
        entry.insert(Disguised { memory: std::mem::take(&mut request.memory), token });
        request.op = Op::WriteZeroes { extent, unmap: self.unmap };
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(extent.bytes(), Ordering::Relaxed);
    }

    fn undisguise(&mut self, request: &mut Box<Request>) {
        let index = self.tokens.index_of(request.token);
        if let (Op::WriteZeroes { extent, .. }, Some(index)) = (request.op, index) {
            request.op = Op::Write(extent);
            Disguised { memory: request.memory, token: request.token } =
                self.disguised.remove(index);
        }
    }
}

impl Channel for ZeroesChannel {
    pass_to_base!(kick, next_look, retire);

    fn submit(&mut self, mut request: Box<Request>) {
        if let Op::Write(extent) = request.op
            && self.is_suitable(extent)
            && request.is_zero()
            // Lost memory reads as zeroes.
            && is_whole(&request.memory)
        {
            self.disguise(&mut request, extent);
        }
        self.base.submit(request);
    }

    fn reap(&mut self, done: &mut Vec<Completion>) {
        let before = done.len();
        self.base.reap(done);
        if self.disguised.is_empty() {
            return;
        }
        for completion in &mut done[before..] {
            self.undisguise(&mut completion.request);
        }
    }
}
