//! A layer used with blocking calls, one request at a time: for tools and tests that have no other
//! work to overlap with the I/O.

use std::io;

use crate::{
    Channel, Completion, Extent, IoVec, Layer, Op, Outcome, QueueContext, QueueDepth, Reactor,
    Request, SECTOR_BYTES, Sector, SectorCount,
};

/// A disk with blocking calls. Stays on the thread that made it, as its channel does.
pub struct BlockingDisk {
    channel: Box<dyn Channel>,
    reactor: Reactor,
    done: Vec<Completion>,
}

impl BlockingDisk {
    /// Opens a channel of queue depth 1 into `layer`.
    pub fn new(layer: &dyn Layer) -> io::Result<Self> {
        let context = QueueContext::alone(QueueDepth(1))?;
        let channel = layer.channel(&context)?;
        Ok(Self { channel, reactor: context.reactor, done: Vec::new() })
    }

    /// Reads whole sectors from `start` on.
    pub fn read(&mut self, start: Sector, target: &mut [u8]) -> Outcome {
        self.transfer(Op::Read(extent_of(start, target)), target)
    }

    /// Writes whole sectors from `start` on.
    pub fn write(&mut self, start: Sector, source: &mut [u8]) -> Outcome {
        self.transfer(Op::Write(extent_of(start, source)), source)
    }

    /// Carries out an operation that needs no memory.
    pub fn run(&mut self, op: Op) -> Outcome {
        self.transfer(op, &mut [])
    }

    fn transfer(&mut self, op: Op, memory: &mut [u8]) -> Outcome {
        let mut request = Request::new(op, 0);
        if !memory.is_empty() {
            // SAFETY: the request completes before this call returns.
            request.memory.push(unsafe { IoVec::of(memory) });
        }
        self.channel.submit(request);
        self.channel.kick();
        loop {
            self.channel.reap(&mut self.done);
            if let Some(completion) = self.done.pop() {
                return completion.outcome;
            }
            self.reactor.sleep(|| self.channel.next_look());
        }
    }
}

fn extent_of(start: Sector, memory: &[u8]) -> Extent {
    assert!((memory.len() as u64).is_multiple_of(SECTOR_BYTES), "transfers are whole sectors");
    Extent::new(start, SectorCount::new(memory.len() as u64 / SECTOR_BYTES))
        .expect("a transfer of at least one sector, inside the address space")
}
