//! Background work of an image, for callers that run it themselves.

use std::time::Instant;

/// The work behind an open image: checkpoints, cleaning, discards. A daemon has a thread for it; a
/// caller of `open_stepped` runs it on one thread with the image's queues,
/// so that everything happens in the same order each time.
pub trait Upkeep {
    /// Returns whether work is due now.
    fn is_due(&self) -> bool;

    /// Returns when work will be due if no request or command comes until then.
    fn next(&self) -> Option<Instant>;

    /// Does one piece of due work and returns when it is done. While it waits for the file, other
    /// work runs in the file's own `next_look`, or while the file's clock sleeps.
    fn turn(&mut self);
}
