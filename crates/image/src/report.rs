//! Options and report of a check.

use serde::Serialize;

/// Options of a check: its scope, and whether to repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Log images: also read all data and compare it with its checksums. A raw image is always
    /// read, since there is nothing else to check.
    pub data: bool,
    /// Repair what can be repaired without losing anything that is still readable.
    pub repair: bool,
}

/// Result of a check: its JSON is stable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// Bytes of data that match their checksum or, in a raw image, are readable.
    pub readable_bytes: u64,
    /// Bytes of data in all.
    pub data_bytes: u64,
    /// Number of errors in all.
    pub error_count: u64,
    /// Allocated bytes without a reference; a raw image has none.
    pub leaked_bytes: u64,
    /// Errors, one line each; limited to `ERRORS_LISTED_MAX`.
    pub errors: Vec<String>,
    /// Remarks that are not errors.
    pub notes: Vec<String>,
    /// Repairs made, and data lost by them.
    pub repairs: Vec<String>,
}

/// Maximum number of errors listed; further ones are only counted.
pub const ERRORS_LISTED_MAX: usize = 100;

impl CheckReport {
    /// Adds an error.
    pub fn error(&mut self, line: impl Into<String>) {
        self.error_count += 1;
        if self.errors.len() < ERRORS_LISTED_MAX {
            self.errors.push(line.into());
        }
    }
}

/// Progress of a check: bytes done, and bytes in all.
pub type CheckProgress<'a> = &'a mut dyn FnMut(u64, u64);
