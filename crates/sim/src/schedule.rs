//! The order in which a channel carries its requests out.

/// When a channel carries its requests out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At the kick, in the order of submission.
    InOrder,
    /// At each reap some of them, none or all among them, in any order; a sleep carries out at
    /// least one. Each channel of a disk has a random order of its own, made from the seed and
    /// the channel's number.
    Shuffled {
        /// Where the random numbers begin.
        seed: u64,
    },
}
