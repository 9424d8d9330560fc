//! The parameters of an S3-FIFO cache: the sizes that its authors fix, and a rule of LIRS.

/// The sizes of the queues, and when a block goes to the main queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Size of the small queue, as a fraction of the capacity.
    pub small: f64,
    /// Uses in the small queue that promote a block to the main queue.
    pub promote: u32,
    /// Number of ghosts, as a fraction of the capacity.
    pub ghosts: f64,
    /// Whether a ghost that comes back goes to the main queue only if it was used after the block
    /// at that queue's end (the rule of LIRS: Jiang and Zhang, SIGMETRICS 2002). Else it always
    /// does, and a loop that is longer than the cache displaces what is hit.
    pub by_recency: bool,
}

impl Shape {
    /// The parameters of the paper, as in its authors' simulator.
    pub const PAPER: Self = Self { small: 0.1, promote: 2, ghosts: 0.9, by_recency: false };
}
