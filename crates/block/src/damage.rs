//! Damage of an image: data that was written and has been lost.

use std::error::Error;
use std::fmt;

use crate::{SECTOR_BYTES, Sector};

/// A part of an image whose content is lost or unreadable, or cannot be valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The image's path.
    pub image: String,
    /// The damaged part, and what is wrong with it.
    pub what: String,
    /// The first lost sector of the disk, as a guest LBA, if it is known.
    pub lba: Option<Sector>,
    /// The byte offset in the host file, if it is known.
    pub offset: Option<u64>,
}

impl Damage {
    /// Makes damage of an image's structure: the lost sectors of the disk are not known.
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
