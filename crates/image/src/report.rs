//! What a check is asked, and what it answers.

/// What to check, and what to do about what is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// Log images: also read all data and compare it with its checksums. Of a raw image there is
    /// nothing else to check, so it is always read.
    pub data: bool,
    /// Repair what can be repaired without losing anything that could still be read.
    pub repair: bool,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Bytes of data read and found as they were written, or, in a raw image, readable.
    pub readable_bytes: u64,
    /// Bytes of data that there are.
    pub data_bytes: u64,
    /// What is wrong, one line each; a long list is cut short.
    pub errors: Vec<String>,
    /// How many errors there are in all.
    pub error_count: u64,
    /// Bytes that belong to nothing; a raw image has none.
    pub leaked_bytes: u64,
    /// What is not wrong, and good to know.
    pub notes: Vec<String>,
    /// What has been repaired, and what that has cost.
    pub repairs: Vec<String>,
}

/// Maximum of errors listed; the rest are counted.
pub const ERRORS_LISTED_MAX: usize = 100;

impl CheckReport {
    pub(crate) fn error(&mut self, line: impl Into<String>) {
        self.error_count += 1;
        if self.errors.len() < ERRORS_LISTED_MAX {
            self.errors.push(line.into());
        }
    }
}

/// How far a check has come: so many bytes of so many.
pub type CheckProgress<'a> = &'a mut dyn FnMut(u64, u64);
