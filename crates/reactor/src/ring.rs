//! An io_uring and its submissions that the kernel has not seen yet.
//!
//! It defers completion work to the thread that owns it (`DEFER_TASKRUN`), so the completion queue
//! stays empty until that thread enters the kernel; the `TASKRUN` flag in shared memory says when
//! entering is worth it.

use std::io;
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, squeue};

/// A thread gathers the submissions of all its users, of which the first may have a small queue.
const ENTRIES_MIN: u32 = 256;

pub struct Ring {
    ring: IoUring,
    /// Submissions in the queue that are not submitted to the kernel yet.
    queued: usize,
}

impl Ring {
    /// Makes a ring with room for `entries` submissions, or more; more at once cost another call.
    pub fn new(entries: u32) -> io::Result<Self> {
        let entries = entries.max(ENTRIES_MIN);
        let deferred = IoUring::builder()
            .setup_single_issuer()
            .setup_coop_taskrun()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .build(entries);
        // Kernels before 6.1 do not know these flags; the plain ring works the same, slightly
        // slower.
        let ring = deferred.or_else(|_| IoUring::builder().setup_clamp().build(entries))?;
        Ok(Self { ring, queued: 0 })
    }

    /// Limits the kernel's worker threads to `count` bounded and `count` unbounded ones. The
    /// default is up to four per CPU for each ring, and stays on kernels without the call (before
    /// 5.15).
    pub fn limit_workers(&self, count: u32) {
        let _ = self.ring.submitter().register_iowq_max_workers(&mut [count; 2]);
    }

    /// Queues a submission.
    ///
    /// # Safety
    /// The memory and the descriptor that the entry names must stay valid until its completion has
    /// been taken.
    pub unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the caller vouches for the entry.
        while unsafe { self.ring.submission().push(entry) }.is_err() {
            self.enter(0, None);
        }
        self.queued += 1;
    }

    /// Submits the queued entries to the kernel. Returns whether there were any.
    pub fn submit(&mut self) -> bool {
        let is_needed = self.queued > 0;
        if is_needed {
            self.enter(0, None);
        }
        is_needed
    }

    /// Returns whether entering the kernel submits or delivers something.
    pub fn needs_entering(&mut self) -> bool {
        self.queued > 0 || self.has_more_inside()
    }

    /// Submits the queued entries, runs completion work, and waits for `wanted` completions or the
    /// deadline.
    pub fn enter(&mut self, wanted: u32, deadline: Option<Instant>) {
        let entered = match deadline {
            None => {
                let (queued, flags) = (self.queued as u32, EnterFlags::GETEVENTS.bits());
                // SAFETY: no argument is passed, and the entries were vouched for in `push`.
                unsafe {
                    self.ring.submitter().enter::<libc::sigset_t>(queued, wanted, flags, None)
                }
            }
            Some(at) => {
                let timeout = timespec(at.saturating_duration_since(Instant::now()));
                let arguments = SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(wanted as usize, &arguments)
            }
        };
        match entered {
            Ok(accepted) => self.queued -= accepted.min(self.queued),
            // Interrupted, timed out, or out of room until completions are reaped: some entries may
            // have been submitted; count the rest in the queue.
            Err(_) => self.queued = self.ring.submission().len(),
        }
    }

    /// Returns whether the kernel holds completions that only entering it delivers: their work is
    /// deferred to this thread, or the completion queue was full when they came.
    pub fn has_more_inside(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Returns the next completion: its user data and result.
    pub fn next(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::new().sec(duration.as_secs()).nsec(duration.subsec_nanos())
}
