//! Work of the maintenance worker that has a reply.

/// What it is asked for.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// The disk has another size, in sectors, and may use so many segments.
    Resize { capacity: u64, segments: u32 },
    /// Put live blocks in order and give back what is dead.
    Compact,
}
