//! The time at which a waiting object has to be polled again.

use std::time::Instant;

/// When to poll a waiting object again. Ordered by time: the earlier one is the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextLook {
    /// At once: something is ready.
    Now,
    /// At this time, or earlier when the thread wakes up.
    At(Instant),
    /// When the thread wakes up, by a completion of the ring, a watch or the waker.
    OnWake,
}

impl NextLook {
    /// Returns `Now` if something is ready, else `OnWake`.
    pub fn now_if(has_something: bool) -> Self {
        if has_something { Self::Now } else { Self::OnWake }
    }
}
