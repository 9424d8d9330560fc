//! What kind of data a request carries, as far as it is known.

/// The class of a write, decided once by the classifier and only read by later stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Class {
    /// File contents, or simply not known.
    #[default]
    Data,
    /// File-system metadata: inode tables, bitmaps, directories.
    Metadata,
    /// A file system's journal: written once, read only after a crash.
    Journal,
}

/// The guest's I/O priority word from the virtio-blk request header.
///
/// A hint under the guest's control, never trusted for safety. Stock Linux kernels pass a bio's
/// `ioprio` through unchanged: class in bits 13-15, hint in bits 3-12, level in bits 0-2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoPriority(pub u16);
