//! Errors as sent to clients: the parts of an [`Error`], and a matching HTTP status.

use std::error::Error as _;

use flowstone_block::{Error, ErrorKind};
use hyper::StatusCode;
use serde::{Deserialize, Serialize};

/// Why a command was not carried out.
#[derive(Debug)]
pub struct Refused {
    /// The error for the client.
    pub error: Error,
    /// Whether the disk, group or request that it names does not exist.
    pub is_unknown: bool,
}

impl Refused {
    /// Makes the refusal of an unknown name.
    pub fn unknown(error: Error) -> Self {
        Self { error, is_unknown: true }
    }

    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        if self.is_unknown { StatusCode::NOT_FOUND } else { status_of(self.error.kind()) }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, is_unknown: false }
    }
}

/// See the table of docs/operating.md.
fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Busy => StatusCode::CONFLICT,
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The body of an error answer.
#[derive(Deserialize, Serialize)]
pub struct Body {
    /// The error.
    pub error: Failure,
}

/// The parts of an [`Error`], which can be sent and copied: another can print the same line.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub struct Failure {
    kind: String,
    what: String,
    why: String,
    advice: String,
}

impl Failure {
    /// Takes an error apart.
    pub fn of(error: &Error) -> Self {
        Self {
            kind: error.kind().name().into(),
            what: error.what().into(),
            why: error.source().map(ToString::to_string).unwrap_or_default(),
            advice: error.advice().to_owned(),
        }
    }

    /// Makes the error again.
    pub fn into_error(self) -> Error {
        let Self { kind, what, why, advice } = self;
        let kind = ErrorKind::from_name(&kind).unwrap_or(ErrorKind::Host);
        Error::new(kind, what, why, advice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has a row for each kind, with its status.
    #[test]
    fn the_statuses_are_those_of_the_page() {
        let page = include_str!("../../../docs/operating.md");
        for kind in ["busy", "invalid", "unsupported", "damaged", "no_space", "host"] {
            let status = status_of(ErrorKind::from_name(kind).unwrap()).as_u16();
            let row = format!("| `{kind}` | {status} |");
            assert!(page.contains(&row), "{row}");
        }
    }
}
