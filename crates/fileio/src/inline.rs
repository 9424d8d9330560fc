//! The engine for files in memory: each request is a plain call on the thread that runs
//! the queue.
//!
//! io_uring hands requests on tmpfs to worker threads, which costs more than the copy itself. A
//! large copy would hold up the thread's other queues: it goes to the pool of the `sync` engine.

use std::sync::Arc;

use flowstone_block::{NextLook, mutated};

use crate::blocking::execute;
use crate::descriptor::Descriptors;
use crate::pool::PoolChannel;
use crate::{FileChannel, FileCompletion, FileRequest};

/// A queue's way into a file in memory.
pub(crate) struct InlineChannel {
    file: Arc<Descriptors>,
    pool: PoolChannel,
    done: Vec<FileCompletion>,
}

impl InlineChannel {
    pub fn new(file: Arc<Descriptors>, pool: PoolChannel) -> Self {
        Self { file, pool, done: Vec::new() }
    }
}

impl FileChannel for InlineChannel {
    fn submit(&mut self, request: FileRequest) {
        let is_long = mutated("fileio.inline.copies-any-length", request.is_long_copy(), false);
        if is_long {
            return self.pool.submit(request);
        }
        self.done.push(execute(&self.file, &request));
    }

    fn kick(&mut self) {
        self.pool.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.done);
        self.pool.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty()).min(self.pool.next_look())
    }

    fn is_idle(&self) -> bool {
        self.pool.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use flowstone_block::{AlignedBuf, IoVec, QueueContext, QueueDepth};
    use flowstone_testkit::wait_until;

    use super::*;
    use crate::descriptor::FileKind;
    use crate::pool::Pool;
    use crate::{FileOffset, FileOp, MemoryList};

    /// Regression: a request of 504 MiB held up all queues of a shared thread for up to a second.
    #[test]
    fn a_long_copy_is_made_by_another_thread() {
        let context = QueueContext::alone(QueueDepth(8)).unwrap();
        let file = Arc::new(
            Descriptors::new(tempfile::tempfile().unwrap(), None, FileKind::Regular).unwrap(),
        );
        let pool = PoolChannel::new(Arc::new(Pool::default()), Arc::clone(&file), &context.reactor);
        let mut channel = InlineChannel::new(Arc::clone(&file), pool);
        for (bytes, is_at_once) in [(2 << 20, true), ((2 << 20) + 4096, false)] {
            let mut buffer = AlignedBuf::zeroed(bytes);
            buffer.fill(7);
            // SAFETY: the buffer outlives the request.
            let list = [unsafe { IoVec::of(&mut buffer) }];
            let (offset, bytes) = (FileOffset::new(0), bytes as u64);
            let op = FileOp::Write { offset, bytes, durable: false };
            // SAFETY: the list outlives the request.
            channel.submit(FileRequest::new(op, unsafe { MemoryList::new(&list) }, 1));
            let mut done = Vec::new();
            channel.reap(&mut done);
            assert_eq!(!done.is_empty(), is_at_once);
            channel.kick();
            wait_until("it is done", || {
                channel.reap(&mut done);
                !done.is_empty()
            });
            assert!(done[0].outcome.is_ok() && channel.is_idle());
            assert_eq!(file.size().unwrap(), bytes);
        }
    }
}
