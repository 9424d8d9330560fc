//! The contenders of the points.

/// A contender; all of them are served by Flowstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A raw image with every block written.
    Raw,
    /// The same with one queue, whatever the number of the others.
    RawAlone,
    /// A log image with every block written.
    Log,
}

impl Contender {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::RawAlone => "one raw writer",
            Self::Log => "log",
        }
    }

    /// Returns how many of the point's queues it has.
    pub const fn queues(self, queues: usize) -> usize {
        match self {
            Self::Raw | Self::Log => queues,
            Self::RawAlone => 1,
        }
    }
}
