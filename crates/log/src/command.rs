//! Commands of the maintenance worker, which have a reply.

/// A command.
#[derive(Clone, Copy, Debug)]
pub enum Command {
    /// Change the size of the disk, in sectors, and the number of segments that it may use.
    Resize { capacity: u64, segments: u32 },
    /// Put live blocks in LBA order and deallocate dead segments.
    Compact,
}
