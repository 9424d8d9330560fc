//! What the formats have in common.

use anyhow::Result;

use crate::Event;

/// What reads the lines of a format.
pub trait Lines {
    /// Reads the next line. Those that are no request give nothing.
    fn event(&mut self, line: &str) -> Result<Option<Event>>;
}
