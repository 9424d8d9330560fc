//! Waiting in tests, and skipping of tests that cannot run here.

use std::fmt::Display;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time after which a wait is a hang. No test measures with it: the awaited event may take any
/// shorter time on a busy machine.
pub const HANG: Duration = Duration::from_secs(120);
/// Interval of checks.
const PAUSE: Duration = Duration::from_millis(2);

/// Environment variable that makes tests fail that cannot run here.
const REQUIRE_ALL: &str = "FLOWSTONE_REQUIRE_ALL";

/// Waits until `holds` returns `true`.
///
/// # Panics
/// If it does not within [`HANG`].
#[track_caller]
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    wait_for(what, || if holds() { Ok(()) } else { Err(()) });
}

/// Waits until `look` returns the wanted value, and returns it. The last other value is in the
/// panic message.
///
/// # Panics
/// If it does not within [`HANG`].
#[track_caller]
pub fn wait_for<T, E: std::fmt::Debug>(what: &str, mut look: impl FnMut() -> Result<T, E>) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) if began.elapsed() > HANG => panic!("waited in vain: {what}; {seen:?}"),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}

/// Returns the CPU time of this thread: the cost of a test, whatever else the machine does.
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}

/// Reports that the test of this thread, or a part of it, is skipped. The line bypasses the capture
/// of the output of passing tests: `make test` counts it.
///
/// # Panics
/// If `FLOWSTONE_REQUIRE_ALL` is set.
pub fn skip(why: impl Display) {
    assert!(std::env::var_os(REQUIRE_ALL).is_none(), "{REQUIRE_ALL} is set, and {why}");
    let thread = thread::current();
    let name = thread.name().unwrap_or("a-part-of-a-test");
    let why = why.to_string();
    let line = format!("skipped {name}: {}\n", why.trim().replace('\n', " "));
    // Not through `eprint`, which is captured. A lost line changes no result.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_was_waited_for() {
        let mut looks = 0;
        let found = wait_for("the third look", || {
            looks += 1;
            if looks == 3 { Ok(looks) } else { Err(looks) }
        });
        assert_eq!(found, 3);
        wait_until("what holds already", || true);
    }
}
