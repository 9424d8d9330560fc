//! Asynchronous reads and writes of the maintenance worker. They stay out of the host's page cache:
//! a segment that is cleaned is not read again, and what is copied is cold, or a journal.

use std::io;

use flowstone_block::{AlignedBuf, IoVec, Outcome, QueueContext, QueueDepth, Reactor, mutated};
use flowstone_fileio::{FileCompletion, MemoryList};
use flowstone_log_format::Address;
use slab::Slab;

use flowstone_log_store::{Hints, SegmentStore, StoreQueue};

/// Queue depth: more than are ever in flight.
const DEPTH: u16 = 128;

/// See the module. Each transfer ends when it is [waited for](Self::wait).
pub struct Transfers {
    /// Dropped first, which waits for transfers in flight: the kernel uses `started`.
    store: StoreQueue,
    reactor: Reactor,
    done: Vec<FileCompletion>,
    started: Slab<Transfer>,
}

/// One transfer.
struct Transfer {
    buffer: AlignedBuf,
    /// Part of the buffer that is transferred. Boxed: the kernel has its address.
    #[expect(dead_code, reason = "only the kernel looks at it")]
    memory: Box<[IoVec; 1]>,
    outcome: Option<Outcome>,
}

/// Identifies a started transfer.
#[derive(Debug)]
pub struct Ticket(usize);

impl Transfers {
    /// Opens a queue of a store.
    pub fn new(store: &SegmentStore) -> io::Result<Self> {
        let context = QueueContext::alone(QueueDepth(DEPTH))?;
        let store = store.queue(&context)?;
        let (done, started) = Default::default();
        Ok(Self { store, reactor: context.reactor, done, started })
    }

    /// Starts a read into the first `bytes` of a buffer.
    pub fn read(&mut self, from: Address, buffer: AlignedBuf, bytes: usize) -> Ticket {
        self.start(buffer, bytes, |store, list, key, hints| store.read(from, list, key, hints))
    }

    /// Starts the write of a record of a lifetime, the first `bytes` of a buffer.
    pub fn append(
        &mut self,
        lifetime: u8,
        at: Address,
        buffer: AlignedBuf,
        bytes: usize,
    ) -> Ticket {
        self.start(buffer, bytes, |store, list, key, hints| {
            store.append(lifetime, at, list, key, hints);
        })
    }

    fn start(
        &mut self,
        mut buffer: AlignedBuf,
        bytes: usize,
        submit: impl FnOnce(&mut StoreQueue, MemoryList, usize, Hints),
    ) -> Ticket {
        // SAFETY: buffer and list stay in `started` until the request has completed; neither moves.
        let memory = Box::new([unsafe { IoVec::of(&mut buffer[..bytes]) }]);
        // SAFETY: as above.
        let list = unsafe { MemoryList::new(&*memory) };
        let key = self.started.insert(Transfer { buffer, memory, outcome: None });
        let stays_out = mutated("log.cleaner.fills-the-page-cache", true, false);
        submit(&mut self.store, list, key, Hints { stays_out, ..Hints::default() });
        self.store.kick();
        Ticket(key)
    }

    /// Returns whether a transfer has completed. Does not block.
    pub fn has_ended(&mut self, ticket: &Ticket) -> bool {
        if self.started[ticket.0].outcome.is_none() {
            self.collect();
        }
        self.started[ticket.0].outcome.is_some()
    }

    /// Waits until a transfer has completed; returns its buffer.
    pub fn wait(&mut self, ticket: Ticket) -> (AlignedBuf, Outcome) {
        loop {
            if let Some(outcome) = self.started[ticket.0].outcome {
                return (self.started.remove(ticket.0).buffer, outcome);
            }
            self.reactor.sleep(|| self.store.next_look());
            self.collect();
        }
    }

    fn collect(&mut self) {
        self.store.reap(&mut self.done);
        for completion in self.done.drain(..) {
            self.started[completion.tag].outcome = Some(completion.outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use flowstone_block::NextLook;
    use flowstone_fileio::{FileChannel, FileRequest};
    use flowstone_log_format::Shape;
    use flowstone_sim::{SimDisk, Wrapped};

    use super::*;

    /// Counts requests that fill the page cache.
    struct Watched(Box<dyn FileChannel>, Arc<AtomicUsize>);

    impl FileChannel for Watched {
        fn submit(&mut self, request: FileRequest) {
            self.1.fetch_add(usize::from(!request.dont_cache), Ordering::Relaxed);
            self.0.submit(request);
        }

        fn kick(&mut self) {
            self.0.kick();
        }

        fn reap(&mut self, done: &mut Vec<FileCompletion>) {
            self.0.reap(done);
        }

        fn next_look(&mut self) -> NextLook {
            self.0.next_look()
        }
    }

    /// Regression: cleaning in quiet moments brought journal blocks back into the page cache.
    #[test]
    fn what_the_cleaner_copies_does_not_stay_in_the_page_cache() {
        let filled = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&filled);
        let file = Wrapped::new(&SimDisk::new(8192), move |it| Watched(it, Arc::clone(&count)));
        let shape = Shape { segment_blocks: 2, reserve_percent: 20, streams: 1 };
        let mut transfers = Transfers::new(&SegmentStore::new(Box::new(file), shape)).unwrap();
        let read = transfers.read(Address::new(0), AlignedBuf::zeroed(4096), 4096);
        let (buffer, outcome) = transfers.wait(read);
        outcome.unwrap();
        let write = transfers.append(0, Address::new(1), buffer, 4096);
        transfers.wait(write).1.unwrap();
        assert_eq!(filled.load(Ordering::Relaxed), 0);
    }
}
