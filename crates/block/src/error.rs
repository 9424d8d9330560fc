//! Errors of the control plane: what was being done, why it failed, what to try.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::io;

use crate::{Damage, Errno, Printable};

/// What a caller can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Somebody else uses it; trying again later may help.
    Busy,
    /// The caller asked for something that cannot be.
    Invalid,
    /// It can be, and this version, this image or this host does not have it.
    Unsupported,
    /// An image is not as it was written; [`Error::damage`] says where.
    Damaged,
    /// The host has no room left for it.
    NoSpace,
    /// The host refused or failed.
    Host,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Busy, Self::Invalid, Self::Unsupported, Self::Damaged, Self::NoSpace, Self::Host];

    /// Its name where programs read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Damaged => "damaged",
            Self::NoSpace => "no_space",
            Self::Host => "host",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// What the host means by an error.
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

/// An error a person reads, in one line: `WHAT: WHY; TRY`.
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
    /// An error of a kind.
    pub fn new(
        kind: ErrorKind,
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { kind, what: what.into(), why: why.into(), advice: advice.into() }
    }

    /// The caller asked for something that cannot be.
    pub fn invalid(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Invalid, what, why, advice)
    }

    /// This version, this image or this host does not have what the caller asked for.
    pub fn unsupported(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Unsupported, what, why, advice)
    }

    /// Somebody else uses what the caller asked for.
    pub fn busy(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(ErrorKind::Busy, what, why, advice)
    }

    /// The host refused or failed. Its error number may say more than that: then the kind does,
    /// too.
    pub fn host(
        what: impl Into<String>,
        why: impl Into<Box<dyn StdError + Send + Sync>>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        let why = why.into();
        Self::new(ErrorKind::of_host_error(why.as_ref()), what, why, advice)
    }

    /// An image is not as it was written.
    pub fn damaged(damage: Damage, advice: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Damaged, damage.image.clone(), damage, advice)
    }

    /// What a caller can tell apart.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What is damaged and where, of an error that is about that.
    pub fn damage(&self) -> Option<&Damage> {
        self.why.downcast_ref()
    }

    /// What was being done; why it failed is the [source](StdError::source).
    pub fn what(&self) -> &str {
        &self.what
    }

    /// What to try.
    pub fn advice(&self) -> &str {
        &self.advice
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An image's or a monitor's words may be in it.
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
