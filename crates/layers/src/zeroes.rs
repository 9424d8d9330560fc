//! Writes of nothing but zeroes become write-zeroes, which take no room and move no data.
//!
//! The whole request counts, as with QEMU: all of its data is zero, or it goes on as it is. So is
//! a request that does not begin and end at the disk's discard granularity, since the host would
//! have to read and write what is left over at its ends.
//!
//! The guest may change its memory while we look. Each byte is looked at once, and a zero that
//! was seen is what the disk holds afterwards; a request that goes on as it is is read by the
//! disk itself, later. Either way every byte on the disk is one that its place in memory held
//! between submission and completion, which is all that any disk promises: a device that copies
//! the buffer while it changes mixes old and new in the same way.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::{Args, ValueEnum};
use flowstone_block::{
    Channel, Completion, Extent, Geometry, IoVec, Layer, NextLook, Op, QueueContext, Request,
    Token, TokenSource, is_whole,
};
use serde::Serialize;
use slab::Slab;

/// What becomes of writes that are all zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DetectZeroes {
    /// They are written
    #[default]
    Off,
    /// Their range is made zero without moving data, and keeps its space
    On,
    /// The host gets their space back, too
    Unmap,
}

/// Whether the layer is there.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ZeroesArgs {
    /// What becomes of writes that are all zero
    #[arg(long, value_name = "MODE", value_enum, default_value_t)]
    pub detect_zeroes: DetectZeroes,
}

impl ZeroesArgs {
    /// The layer over `base`, and its counters, if it is asked for.
    pub fn layer(self, base: Arc<dyn Layer>) -> (Arc<dyn Layer>, Option<Arc<ZeroCounters>>) {
        if self.detect_zeroes == DetectZeroes::Off {
            return (base, None);
        }
        let zeroes = Zeroes::new(base, self.detect_zeroes == DetectZeroes::Unmap);
        let counters = zeroes.counters();
        (Arc::new(zeroes), Some(counters))
    }
}

/// How many writes were found to be zero. Shared by all queues, and touched for those only.
#[derive(Debug, Default, Serialize)]
pub struct ZeroCounters {
    /// Writes.
    pub requests: AtomicU64,
    /// Their bytes.
    pub bytes: AtomicU64,
}

/// The layer.
pub struct Zeroes {
    base: Arc<dyn Layer>,
    unmap: bool,
    counters: Arc<ZeroCounters>,
}

struct ZeroesChannel {
    base: Box<dyn Channel>,
    unmap: bool,
    granularity: u64,
    /// More in one request is left as it is.
    bytes_max: u64,
    counters: Arc<ZeroCounters>,
    /// What was made into write-zeroes, and is to come back as it went.
    disguised: Slab<Disguised>,
    tokens: TokenSource,
}

/// A write on its way as something else.
struct Disguised {
    memory: Vec<IoVec>,
    /// The mark that it had.
    token: Token,
}

impl Zeroes {
    /// Looks for zeroes in writes to `base`; with `unmap`, their space is given back.
    pub fn new(base: Arc<dyn Layer>, unmap: bool) -> Self {
        Self { base, unmap, counters: Arc::default() }
    }

    /// The counters, to be reported.
    pub fn counters(&self) -> Arc<ZeroCounters> {
        Arc::clone(&self.counters)
    }
}

impl Layer for Zeroes {
    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

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
    fn submit(&mut self, mut request: Box<Request>) {
        if let Op::Write(extent) = request.op
            && self.is_suitable(extent)
            && request.is_zero()
            // What was lost looks like zeroes.
            && is_whole(&request.memory)
        {
            self.disguise(&mut request, extent);
        }
        self.base.submit(request);
    }

    fn kick(&mut self) {
        self.base.kick();
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

    fn next_look(&mut self) -> NextLook {
        self.base.next_look()
    }

    fn retire(&mut self) -> bool {
        self.base.retire()
    }
}
