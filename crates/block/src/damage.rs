//! What was written to an image and is not there any more.

use std::error::Error;
use std::fmt;

use crate::{SECTOR_BYTES, Sector};

/// A part of an image that is not as it was written, or cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The image's path.
    pub image: String,
    /// Which part, and what is wrong with it.
    pub what: String,
    /// The first sector of the disk that is lost, as its guest counts them, if that is known.
    pub lba: Option<Sector>,
    /// Where in the host file, in bytes.
    pub offset: Option<u64>,
}

impl Damage {
    /// Of the structure of an image: it cannot be said which sectors of the disk are lost.
    pub fn of_image(image: impl Into<String>, what: impl Into<String>) -> Self {
        Self { image: image.into(), what: what.into(), lba: None, offset: None }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the image is damaged: {}", self.what)?;
        match (self.lba.map(|lba| lba.get() * SECTOR_BYTES), self.offset) {
            (None, None) => Ok(()),
            (Some(byte), None) => write!(f, " (guest byte {byte})"),
            (None, Some(offset)) => write!(f, " (file offset {offset})"),
            (Some(byte), Some(offset)) => write!(f, " (guest byte {byte}, file offset {offset})"),
        }
    }
}

impl Error for Damage {}
