//! Errors of the control plane: the operation, the reason of its failure, and advice.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::{Damage, Errno, Printable};

named! {
    /// Kinds of errors that a caller can tell apart.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ErrorKind {
        /// The object is in use by another process or operation; trying again later may help.
        Busy = "busy",
        /// The request of the caller is invalid.
        Invalid = "invalid",
        /// The request is valid, but this version, this image or this host does not support it.
        Unsupported = "unsupported",
        /// An image is damaged; [`Error::damage`] says where.
        Damaged = "damaged",
        /// The host is out of space or quota.
        NoSpace = "no_space",
        /// The host refused the operation or failed.
        Host = "host",
    }
}

impl ErrorKind {
    /// Returns the kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Classifies an error of the host by its error number.
    fn of_host_error(why: &(dyn StdError + 'static)) -> Self {
        let errno = match why.downcast_ref::<io::Error>() {
            Some(why) => Errno::from_io_error(why),
            None => why.downcast_ref::<Errno>().copied(),
        };
        match errno {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace,
            Some(Errno::OPNOTSUPP | Errno::NOSYS) => Self::Unsupported,
            Some(Errno::BUSY) => Self::Busy,
            _ => Self::Host,
        }
    }
}

/// An error for an operator, in one line: `WHAT: WHY; TRY`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    what: String,
    why: Box<dyn StdError + Send + Sync>,
    advice: Cow<'static, str>,
}

/// Result of a control-plane operation.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error of `kind`.
    pub fn new(
        kind: ErrorKind,
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind, what: what.into(), why: why.into(), advice: advice.into() }
    }

    /// Makes an error of kind [`ErrorKind::Invalid`].
    pub fn invalid(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Invalid, what, why, advice)
    }

    /// Makes an error of kind [`ErrorKind::Unsupported`].
    pub fn unsupported(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Unsupported, what, why, advice)
    }

    /// Makes an error of kind [`ErrorKind::Busy`].
    pub fn busy(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Busy, what, why, advice)
    }

    /// Makes an error of kind [`ErrorKind::Host`], or of a more specific kind if the host's error
    /// number has one.
    pub fn host(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        let why = why.into();
        Self::new(ErrorKind::of_host_error(why.as_ref()), what, why, advice)
    }

    /// Makes an error of kind [`ErrorKind::Damaged`].
    pub fn damaged(damage: Damage, advice: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Damaged, damage.image.clone(), damage, advice)
    }

    /// Returns the kind of the error.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the damaged part of the image, if the error is about one.
    pub fn damage(&self) -> Option<&Damage> {
        self.why.downcast_ref()
    }

    /// Returns the operation that failed; the reason is the [source](StdError::source).
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Returns the advice to the operator.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped: the text may contain strings of an image or a monitor.
        write!(f, "{}", Printable(format_args!("{}: {}; {}", self.what, self.why, self.advice)))
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.why.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_a_host_error_is_what_its_number_says() {
        let full = |why: io::Error| Error::host("write", why, "free space").kind();
        assert_eq!(
            full(io::Error::from_raw_os_error(Errno::NOSPC.raw_os_error())),
            ErrorKind::NoSpace
        );
        assert_eq!(full(io::Error::from_raw_os_error(Errno::IO.raw_os_error())), ErrorKind::Host);
        assert_eq!(full(io::Error::other("no number")), ErrorKind::Host);
        let direct = |errno| Error::host("write", errno, "free space").kind();
        assert_eq!(direct(Errno::DQUOT), ErrorKind::NoSpace);
        assert_eq!(direct(Errno::OPNOTSUPP), ErrorKind::Unsupported);
        assert_eq!(direct(Errno::BUSY), ErrorKind::Busy);
    }

    #[test]
    fn damage_is_a_value_and_one_line() {
        let damage = Damage {
            image: "a.flow".into(),
            what: "a checksum does not fit".into(),
            lba: Some(crate::Sector::new(800)),
            offset: Some(8192),
        };
        let error = Error::damaged(damage.clone(), "restore it");
        assert_eq!((error.kind(), error.damage()), (ErrorKind::Damaged, Some(&damage)));
        let line = "a.flow: the image is damaged: a checksum does not fit (guest byte 409600, file \
                    offset 8192); restore it";
        assert_eq!(error.to_string(), line);
        assert_eq!(Error::invalid("a", "b", "c").damage(), None);
    }

    #[test]
    fn every_kind_is_found_by_its_name() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(ErrorKind::from_name("other"), None);
    }
}
