//! The limit of open files (`RLIMIT_NOFILE`).
//!
//! Services commonly start with a soft limit of 1,024, for programs that use `select`, and a hard
//! one of half a million. A daemon with many disks of many queues needs more than the soft one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Advice if the limit is too low.
pub const ADVICE: &str = "raise it (`ulimit -n`, LimitNOFILE= of systemd), or use fewer queues";

/// Descriptors of a running queue: kick, call, error, ring, waker, flushes, and those of its
/// image's own threads and backing file.
const PER_QUEUE: u64 = 10;
/// Descriptors of a disk with a guest, and of the daemon: sockets, image, memory.
const PER_DISK: u64 = 32;

/// Raises the soft limit to the hard one. Warns if that is not enough for all disks, given with the
/// number of their queues.
pub fn raise_limit(queues_of_disks: impl ExactSizeIterator<Item = u64>) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, wanted) {
            warn!(%error, "cannot raise the limit of open files (RLIMIT_NOFILE)");
        }
    }
    let disks = queues_of_disks.len() as u64;
    let needed = PER_QUEUE * queues_of_disks.sum::<u64>() + PER_DISK * (disks + 1);
    if current().is_some_and(|current| current < needed) {
        warn!("{}, and all queues of all disks may need {needed}; {ADVICE}", too_few());
    }
}

/// Returns a text with the limit.
pub fn too_few() -> String {
    match current() {
        Some(current) => format!("the limit of open files (RLIMIT_NOFILE) is {current}"),
        None => "the host's limit of open files is reached".into(),
    }
}

/// Returns the soft limit; `None` if unlimited.
fn current() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}
