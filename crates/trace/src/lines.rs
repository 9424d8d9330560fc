//! What the formats have in common.

use anyhow::Result;

use crate::{Event, Trace};

/// What reads the lines of a format.
pub trait Lines {
    /// Reads the next line. Those that are no request give nothing.
    fn event(&mut self, line: &str) -> Result<Option<Event>>;

    /// Whether a line that does not end is only a part of one.
    fn has_cut_lines(&self) -> bool {
        false
    }

    /// Says what else is known of the trace after its last line.
    fn end(&self, _trace: &mut Trace) {}
}
