//! Whether any poller has had something to do lately: tells the thread that balances them, which sleeps
//! while none has.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// A wake-up that comes just before the sleep is missed if its poller then never sleeps; so the sleep ends at
/// times.
const SLEEP_MAX: Duration = Duration::from_secs(10);

/// Shared by all pollers and the thread that balances them.
#[derive(Default)]
pub struct Activity {
    asleep: AtomicBool,
    balancer: OnceLock<Thread>,
}

impl Activity {
    /// Says which thread to wake.
    pub fn tell(&self, balancer: Thread) {
        let _ = self.balancer.set(balancer);
    }

    /// Sleeps until a poller has woken up. Called by the thread that was told.
    pub fn wait(&self) {
        self.asleep.store(true, Ordering::Release);
        std::thread::park_timeout(SLEEP_MAX);
        self.asleep.store(false, Ordering::Release);
    }

    /// A poller has woken up. Costs a load while the other thread is awake.
    pub(super) fn woke(&self) {
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel) {
            self.balancer.get().inspect(|thread| thread.unpark());
        }
    }
}
