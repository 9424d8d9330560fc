//! A simulated disk that lets guests go on while the maintenance worker waits for its I/O.
//!
//! The maintenance worker blocks; in a test with one thread nothing else would happen meanwhile.
//! Here, whenever it waits, a hook of the test runs first. So guests write, read and flush in the
//! middle of checkpoints and of cleaning, and each run is repeatable.

use std::cell::RefCell;

use flowstone_block::NextLook;
use flowstone_fileio::{FileChannel, FileCompletion, FileRequest};
use flowstone_sim::{SimDisk, Wrapped};

thread_local! {
    static HOOK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs `work`, and `hook` whenever `work` waits for I/O or looks at the next few segments.
pub fn with_hook<T>(hook: impl FnMut() + 'static, work: impl FnOnce() -> T) -> T {
    HOOK.with_borrow_mut(|slot| *slot = Some(Box::new(hook)));
    let done = work();
    HOOK.with_borrow_mut(|slot| *slot = None);
    done
}

/// Runs the hook; returns whether there is one.
pub fn run_hook() -> bool {
    // Removed meanwhile: waits inside the hook run no hook.
    let Some(mut hook) = HOOK.with_borrow_mut(Option::take) else { return false };
    hook();
    HOOK.with_borrow_mut(|slot| *slot = Some(hook));
    true
}

/// Makes a file that runs the hook, over a disk.
pub fn scheduled(disk: &SimDisk) -> Wrapped {
    let mut file = Wrapped::new(disk, Queue);
    file.heeds_dont_cache = true;
    file
}

struct Queue(Box<dyn FileChannel>);

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
