//! The number of streams of guest data, one or two, and the requirements of changing it.

use clap::ValueEnum;
use flowstone_block::{Error, Result, named};
use flowstone_log_format::Shape;

named! {
    /// Distribution of guest writes over streams.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub enum Streams {
        /// One stream for all writes
        #[default]
        One = "one",
        /// One stream for the guest's data, another for its metadata and journals
        #[value(alias = "split")]
        Class = "class",
    }
}

impl Streams {
    /// Returns the number of streams.
    pub const fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Class => 2,
        }
    }

    /// Returns the variant for this number of streams.
    pub const fn of(count: u32) -> Self {
        if count > 1 { Self::Class } else { Self::One }
    }

    /// Returns the shape of an image of `blocks` blocks that changes to these streams. Each takes
    /// segments of its own (docs/format.md section 9), beyond those that the image may use now.
    pub fn change(self, name: &str, shape: Shape, blocks: u64, readonly: bool) -> Result<Shape> {
        let changed = Shape { streams: self.count(), ..shape };
        if changed == shape {
            return Ok(shape);
        }
        if readonly {
            let why = "it is open for reading only, and has other streams";
            return Err(Error::invalid(name, why, "leave out --streams, or open it for writing"));
        }
        if changed.root_fits(blocks) {
            return Ok(changed);
        }
        let why = "the image is as large as one can be, without segments for one more stream";
        Err(Error::invalid(name, why, "leave out --streams class, or convert the image"))
    }
}
