//! A thread that calls a function ten times a second while there is load, and sleeps while there is
//! none.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::poller::Activity;

/// Time between two looks while there is load.
const PERIOD: Duration = Duration::from_millis(100);
/// Looks without load after which the thread sleeps until a poller has woken up.
const QUIET_LOOKS: u32 = 20;

/// One look at the loads.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Time since the last look.
    pub time: Duration,
    /// Whether the thread has slept, so that work done meanwhile is not the current load.
    pub is_stale: bool,
}

/// Owner of the thread. Dropping it ends the thread.
pub struct LoadWatch {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LoadWatch {
    /// Starts a thread called `name` that calls `look`, which returns whether there was load.
    pub fn start(
        name: &str,
        activity: Arc<Activity>,
        look: impl FnMut(Look) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let run = move || run(&activity, &theirs, look);
        let thread = Builder::new().name(name.into()).stack_size(128 << 10).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for LoadWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn run(activity: &Activity, stop: &AtomicBool, mut look: impl FnMut(Look) -> bool) {
    let (mut last, mut quiet) = (Instant::now(), 0);
    while !stop.load(Ordering::Acquire) {
        let is_stale = quiet >= QUIET_LOOKS;
        let mut has_woken = false;
        if is_stale {
            has_woken = activity.wait();
        } else {
            std::thread::park_timeout(PERIOD);
        }
        let time = last.elapsed();
        if time < PERIOD / 2 && !is_stale {
            continue;
        }
        last = Instant::now();
        let had_load = look(Look { time, is_stale });
        // A poller that has just woken up has done nothing yet.
        quiet = if had_load || has_woken { 0 } else { quiet + 1 };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use flowstone_testkit::wait_until;

    use super::*;

    /// Without anything to do it woke every ten seconds, and looked for two.
    #[test]
    fn it_looks_for_two_seconds_after_a_poller_has_woken_and_once_if_none_has() {
        let (activity, looks) = (Arc::<Activity>::default(), Arc::<AtomicU32>::default());
        let counted = Arc::clone(&looks);
        let look = move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            false
        };
        let watch = LoadWatch::start("watch", Arc::clone(&activity), look).unwrap();
        let looks_after = |what_happens: &dyn Fn()| {
            what_happens();
            wait_until("it sleeps again", || {
                looks.load(Ordering::Relaxed) > 0 && activity.has_sleepers()
            });
            // One that does not sleep would look again.
            std::thread::sleep(5 * PERIOD);
            looks.swap(0, Ordering::Relaxed)
        };
        assert!(looks_after(&|| ()) >= QUIET_LOOKS);
        // As at the end of its longest sleep.
        let unpark = || watch.thread.as_ref().unwrap().thread().unpark();
        assert_eq!(looks_after(&unpark), 1);
        assert!(looks_after(&|| activity.woke()) >= QUIET_LOOKS);
    }
}
