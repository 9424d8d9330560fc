//! What an image does besides serving requests, for those who give it its turns themselves.

use std::time::Instant;

/// The work behind an open image: checkpoints, cleaning, discards. A daemon has a thread for it;
/// who opens an image with [`open_stepped`](crate::open_stepped) lets it work instead, on one
/// thread with the image's queues, so that all happens in the same order each time.
pub trait Upkeep {
    /// Whether there is something to do now.
    fn is_due(&self) -> bool;

    /// When there will be, if nobody asks for anything until then.
    fn next(&self) -> Option<Instant>;

    /// Does one thing that is due, and returns when that is done. What else is to go on while it
    /// waits for the file goes on in the file's own `next_look`, or while the file's clock sleeps.
    fn turn(&mut self);
}
