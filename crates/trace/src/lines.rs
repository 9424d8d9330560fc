//! The common interface of formats.

use anyhow::Result;

use crate::{Event, Trace};

/// Parser of a format's lines.
pub trait Lines {
    /// Parses the next line; `None` if it is no request.
    fn event(&mut self, line: &str) -> Result<Option<Event>>;

    /// Returns whether a line without an end may be incomplete.
    fn has_cut_lines(&self) -> bool {
        false
    }

    /// Adds further information to the trace after its last line.
    fn end(&self, _trace: &mut Trace) {}
}
