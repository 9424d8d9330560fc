//! The class of a request: the kind of data that it carries, as far as it is known.

named! {
    /// The class of a write, decided once by the classifier and only read by later stages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Class {
        /// File contents, or unknown.
        #[default]
        Data = "data",
        /// File-system metadata: inode tables, bitmaps, directories.
        Metadata = "metadata",
        /// A file system's journal: written once, read only after a crash.
        Journal = "journal",
    }
}

/// The guest's I/O priority word from the virtio-blk request header.
///
/// A hint under the guest's control, never trusted for safety. Stock Linux kernels pass a bio's
/// `ioprio` through unchanged: class in bits 13-15, hint in bits 3-12, level in bits 0-2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct IoPriority(pub u16);

impl IoPriority {
    /// The hint by which the guest module (`guest/kmod`) marks file-system metadata. Linux itself
    /// uses 1 to 7 (duration limits of commands).
    pub const METADATA_HINT: u16 = 0x60;

    const CLASS_SHIFT: u32 = 13;
    const HINT_SHIFT: u32 = 3;
    const HINT_MASK: u16 = 0x3FF;
    const LEVEL_MASK: u16 = 0x7;
    /// `IOPRIO_CLASS_BE`.
    const BEST_EFFORT: u16 = 2;

    /// Returns best effort at `level`, from 0 (first) to 7 (last).
    pub const fn best_effort(level: u8) -> Self {
        Self(Self::BEST_EFFORT << Self::CLASS_SHIFT | level as u16 & Self::LEVEL_MASK)
    }

    /// Returns the same priority with `hint` in its hint bits.
    #[must_use]
    pub const fn with_hint(self, hint: u16) -> Self {
        let others = self.0 & !(Self::HINT_MASK << Self::HINT_SHIFT);
        Self(others | (hint & Self::HINT_MASK) << Self::HINT_SHIFT)
    }

    /// Returns the hint; 0 if there is none.
    pub const fn hint(self) -> u16 {
        self.0 >> Self::HINT_SHIFT & Self::HINT_MASK
    }

    /// Returns whether the class is best effort and the level is `level`, whatever the hint.
    pub fn is_best_effort(self, level: u8) -> bool {
        self.with_hint(0) == Self::best_effort(level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_put_together_as_linux_does() {
        assert_eq!(IoPriority::best_effort(3), IoPriority(16387), "what jbd2 writes with");
        let marked = IoPriority::best_effort(1).with_hint(7);
        assert_eq!(marked, IoPriority(16441), "measured in a guest");
        assert_eq!(marked.hint(), 7);
        assert!(marked.is_best_effort(1));
        assert!(!marked.is_best_effort(3));
        assert!(!IoPriority(24579).is_best_effort(3), "idle, level 3");
    }
}
