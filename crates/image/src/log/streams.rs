//! Whether what guests write is one stream of segments or two, and what an image must have for
//! that.

use clap::ValueEnum;
use flowstone_block::{Error, Result};

use super::shape::Shape;

/// Where a log image puts what guests write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Streams {
    /// All of it into one stream
    #[default]
    One,
    /// A guest's metadata and journals into another stream than its data
    #[value(alias = "split")]
    Class,
}

impl Streams {
    /// How many they are.
    pub const fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Class => 2,
        }
    }

    /// Those of an image that has so many.
    pub const fn of(count: u32) -> Self {
        if count > 1 { Self::Class } else { Self::One }
    }

    /// As options name them.
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Class => "class",
        }
    }

    /// The layout of an image of `blocks` blocks that is to have these streams. Each takes segments
    /// of its own (docs/format.md section 9), beyond those that the image may use now.
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
