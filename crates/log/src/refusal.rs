//! Why an image cannot be opened.

use flowstone_block::{Errno, Error};
use flowstone_image::Flaw;
use flowstone_log_format::{Address, SuperblockError};

/// Why an image could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// It is not a log image.
    Foreign,
    /// It uses a later version or unknown features.
    Unsupported(String),
    /// It is a log image, and a part of it is damaged.
    Damaged(Flaw),
    /// The host could not read it.
    Host(Errno),
}

impl From<Errno> for LoadError {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

impl From<SuperblockError> for LoadError {
    fn from(error: SuperblockError) -> Self {
        match error {
            SuperblockError::Foreign => Self::Foreign,
            SuperblockError::Damaged(why) => damaged(why),
            SuperblockError::Future(why) => Self::Unsupported(why),
        }
    }
}

impl LoadError {
    /// Converts it to an error about the image `name`.
    pub fn explain(self, name: &str) -> Error {
        match self {
            Self::Foreign => {
                Error::invalid(name, "it is not a log image", "give the right file or --format")
            }
            Self::Unsupported(why) => Error::unsupported(name, why, "use a newer version"),
            Self::Damaged(flaw) => {
                let advice = "restore it from a backup, or see `flowstone check --repair`";
                Error::damaged(flaw.in_image(name), advice)
            }
            Self::Host(errno) => Error::host(name, errno, "check the host's file system"),
        }
    }
}

pub fn damaged(what: impl Into<String>) -> LoadError {
    LoadError::Damaged(Flaw::new(what))
}

pub fn damaged_at(place: Address, what: impl Into<String>) -> LoadError {
    LoadError::Damaged(Flaw::new(what).at(place.offset()))
}
