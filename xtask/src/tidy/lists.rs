//! Lists of exceptions, `xtask/tidy/*`: one a line. Exceptions that are no longer needed must be
//! removed, so that a list only shrinks.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Names exempt from a rule.
#[derive(Default)]
pub struct List {
    name: String,
    entries: BTreeSet<String>,
}

impl List {
    /// Reads a list; comments begin with `#`.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Self::parse(&path.file_name().unwrap_or_default().to_string_lossy(), &text))
    }

    /// Parses the text of a list.
    pub fn parse(name: &str, text: &str) -> Self {
        let entries = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
        let entries = entries.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        Self { name: name.to_owned(), entries }
    }

    /// Compares `found`, names with a complaint about each, with the list. Returns the complaints
    /// of names that are not listed, and one for each listed name that is no longer found.
    pub fn judge(&self, found: &[(String, String)]) -> Vec<String> {
        let is_new = |(name, _): &&(String, String)| !self.entries.contains(name);
        let new = found.iter().filter(is_new).map(|(_, complaint)| complaint.clone());
        let is_gone = |entry: &&String| !found.iter().any(|(name, _)| name == *entry);
        let gone = self.entries.iter().filter(is_gone);
        let gone = gone.map(|entry| format!("{entry}: take it off xtask/tidy/{}", self.name));
        new.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_excuses_what_it_names_and_must_shrink() {
        let list = List::parse("excused", "# why\na # a reason\nb\n");
        let found = |name: &str| (name.to_owned(), format!("{name} is bad"));
        assert_eq!(list.judge(&[found("a"), found("b")]), [""; 0]);
        assert_eq!(list.judge(&[found("a"), found("b"), found("c")]), ["c is bad"]);
        assert_eq!(list.judge(&[found("a")]), ["b: take it off xtask/tidy/excused"]);
    }
}
