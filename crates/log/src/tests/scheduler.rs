//! A simulated disk that lets guests go on while the maintenance worker waits for its I/O.
//!
//! The maintenance worker blocks; in a test with one thread nothing else would happen meanwhile.
//! Here, whenever it waits, a hook of the test runs first. So guests write, read and flush in the
//! middle of checkpoints and of cleaning, and each run is repeatable.

use std::cell::RefCell;
use std::io;
use std::ops::Range;

use flowstone_block::{NextLook, QueueContext};
use flowstone_fileio::{FileChannel, FileCompletion, FileIo, FileOffset, FileRequest};
use flowstone_sim::SimDisk;

thread_local! {
    static HOOK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs `work`, and `hook` whenever `work` waits for I/O.
pub fn with_hook<T>(hook: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
    HOOK.with_borrow_mut(|slot| *slot = Some(Box::new(hook)));
    let done = work();
    HOOK.with_borrow_mut(|slot| *slot = None);
    done
}

/// Runs the hook; returns whether there is one.
fn run_hook() -> bool {
    // Removed meanwhile: waits inside the hook run no hook.
    let Some(mut hook) = HOOK.with_borrow_mut(Option::take) else { return false };
    hook();
    HOOK.with_borrow_mut(|slot| *slot = Some(hook));
    true
}

/// See the module.
#[derive(Clone)]
pub struct Scheduled(pub SimDisk);

struct Queue(Box<dyn FileChannel>);

impl FileIo for Scheduled {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.0.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        self.0.next_data(from)
    }

    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }

    fn heeds_dont_cache(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(Queue(self.0.channel(context)?)))
    }
}

impl FileChannel for Queue {
    fn submit(&mut self, request: FileRequest) {
        self.0.submit(request);
    }

    fn kick(&mut self) {
        self.0.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        self.0.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        // The maintenance worker may wait for a queue, which only the hook advances.
        let has_run = run_hook();
        NextLook::now_if(has_run).min(self.0.next_look())
    }
}
