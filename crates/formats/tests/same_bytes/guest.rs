//! A guest with one queue, on one thread with the upkeep of its image: nothing depends on which
//! thread comes first.

use flowstone_block::{
    AlignedBuf, Channel, Class, Extent, IoVec, Layer, NextLook, Op, QueueContext, QueueDepth,
    Request, SECTOR_BYTES, Sector, SectorCount, TimeSource,
};
use flowstone_image::Upkeep;

use crate::host::Host;

/// Looks without progress after which a request counts as stuck, and turns of the upkeep after
/// which it counts as endless.
const LOOKS: usize = 10_000;

/// A request of the sequence.
#[derive(Clone, Copy)]
pub struct Ask {
    op: Op,
    durable: bool,
    class: Class,
}

/// A step of the sequence.
pub enum Step {
    /// Requests that are in flight together.
    Ask(Vec<Ask>),
    /// The upkeep does everything that is due.
    Settle,
    /// Nothing is asked for a while: the upkeep does everything that becomes due.
    Rest,
}

pub fn write(sector: u64, sectors: u64) -> Ask {
    of(Op::Write(extent(sector, sectors)))
}

pub fn read(sector: u64, sectors: u64) -> Ask {
    of(Op::Read(extent(sector, sectors)))
}

pub fn discard(sector: u64, sectors: u64) -> Ask {
    of(Op::Discard(extent(sector, sectors)))
}

pub fn zeroes(sector: u64, sectors: u64, unmap: bool) -> Ask {
    of(Op::WriteZeroes { extent: extent(sector, sectors), unmap })
}

pub fn flush() -> Ask {
    of(Op::Flush)
}

impl Ask {
    pub fn durable(self) -> Self {
        Self { durable: true, ..self }
    }

    pub fn metadata(self) -> Self {
        Self { class: Class::Metadata, ..self }
    }
}

fn of(op: Op) -> Ask {
    Ask { op, durable: false, class: Class::default() }
}

fn extent(sector: u64, sectors: u64) -> Extent {
    Extent::new(Sector::new(sector), SectorCount::new(sectors)).unwrap()
}

/// See the module.
pub struct Guest<'a> {
    // Dropped before the memory of its requests, which `ask` keeps until they have completed.
    channel: Box<dyn Channel>,
    upkeep: &'a mut dyn Upkeep,
    host: &'a Host,
    /// Writes so far, for the contents of the next one.
    writes: u64,
}

impl<'a> Guest<'a> {
    pub fn new(image: &dyn Layer, upkeep: &'a mut dyn Upkeep, host: &'a Host) -> Self {
        let context = QueueContext::alone(QueueDepth(64)).unwrap();
        Self { channel: image.channel(&context).unwrap(), upkeep, host, writes: 0 }
    }

    /// Runs the steps.
    pub fn run(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Ask(asks) => self.ask(asks),
                Step::Settle => self.settle(),
                Step::Rest => self.rest(),
            }
        }
    }

    fn ask(&mut self, asks: &[Ask]) {
        let mut memories: Vec<_> = asks.iter().map(|ask| self.memory_of(*ask)).collect();
        for (tag, (ask, memory)) in asks.iter().zip(&mut memories).enumerate() {
            let durable = if ask.durable { " durable" } else { "" };
            let range = ask.op.extent().map_or_else(String::new, |it| {
                format!(" {}+{}", it.start().get(), it.count().get())
            });
            let name = ask.op.kind().name();
            self.host.list(format!("{name}{range}{durable} {}", ask.class.name()));
            let mut request = Request::new(ask.op, tag as u32);
            (request.durable, request.class) = (ask.durable, ask.class);
            if !memory.is_empty() {
                // SAFETY: `memories` outlives the requests, which have all completed below.
                request.memory.push(unsafe { IoVec::of(memory) });
            }
            self.channel.submit(request);
        }
        self.channel.kick();
        let mut done = Vec::new();
        for _ in 0..LOOKS {
            self.channel.reap(&mut done);
            if done.len() == asks.len() {
                break;
            }
            self.wait();
        }
        assert_eq!(done.len(), asks.len(), "requests are stuck");
        done.sort_by_key(|it| it.request.tag);
        for (completion, memory) in done.iter().zip(&memories) {
            assert_eq!(completion.outcome, Ok(()), "{:?}", completion.request.op);
            if matches!(completion.request.op, Op::Read(_)) {
                self.host.list(format!("found {:08x}", crc32c::crc32c(memory)));
            }
        }
    }

    fn memory_of(&mut self, ask: Ask) -> AlignedBuf {
        let bytes = if matches!(ask.op, Op::Read(_) | Op::Write(_)) { ask.op.bytes() } else { 0 };
        let mut memory = AlignedBuf::zeroed(bytes as usize);
        if matches!(ask.op, Op::Write(_)) {
            self.writes += 1;
            for (sector, target) in memory.chunks_mut(SECTOR_BYTES as usize).enumerate() {
                let stamp = self.writes.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ sector as u64;
                target.chunks_mut(8).for_each(|it| it.copy_from_slice(&stamp.to_le_bytes()));
            }
        }
        memory
    }

    /// Lets the queue go on, else the upkeep, else the time.
    fn wait(&mut self) {
        let look = self.channel.next_look();
        if matches!(look, NextLook::Now) {
            return;
        }
        if self.upkeep.is_due() {
            return self.turn();
        }
        let of_queue = if let NextLook::At(at) = look { Some(at) } else { None };
        let next = of_queue.into_iter().chain(self.upkeep.next()).min();
        self.host.time.advance(next.expect("requests wait for nothing"));
    }

    fn turn(&mut self) {
        self.host.list("upkeep");
        self.upkeep.turn();
    }

    fn settle(&mut self) {
        for _ in 0..LOOKS {
            if !self.upkeep.is_due() {
                return;
            }
            self.turn();
        }
        panic!("the upkeep does not come to an end");
    }

    fn rest(&mut self) {
        for _ in 0..LOOKS {
            self.settle();
            let Some(next) = self.upkeep.next() else { return };
            let wait = next.saturating_duration_since(self.host.time.now());
            self.host.list(format!("{} ms later", wait.as_millis()));
            self.host.time.advance(next);
        }
        panic!("the upkeep does not rest");
    }
}
