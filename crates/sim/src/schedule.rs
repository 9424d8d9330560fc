//! The execution order of a channel's requests.

/// When a channel executes its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At the kick, in the order of submission.
    InOrder,
    /// At each reap a random number of them, in random order; a sleep executes at least one. Each
    /// channel of a disk has its own order, generated from the seed and the channel's number.
    Shuffled {
        /// Seed of the random order.
        seed: u64,
    },
}
