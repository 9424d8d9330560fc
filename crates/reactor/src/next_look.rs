//! When something that waits has to be looked at again.

use std::time::Instant;

/// When to look again at something that waits. Of two, the earlier one is the smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NextLook {
    /// At once: it has something for its owner already.
    Now,
    /// At this time, or when the thread wakes up before.
    At(Instant),
    /// When the thread wakes up: a completion of the ring, a watch or the waker will do that.
    OnWake,
}

impl NextLook {
    /// `Now` if there is something to take already.
    pub fn now_if(has_something: bool) -> Self {
        if has_something { Self::Now } else { Self::OnWake }
    }
}
