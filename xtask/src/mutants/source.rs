//! Finds the mutants in the sources.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::files::files;

/// A mutant: a step that can be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// `AREA.PLACE.what-is-wrong`.
    pub name: String,
    /// The reason why no test can kill it, if none can.
    pub equivalent: Option<String>,
}

impl Mutant {
    /// Returns the first word of the name: the part of the product that it breaks.
    pub fn area(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

const CALL: &str = "mutated(";
const EQUIVALENT: &str = "EQUIVALENT:";
/// Most lines between the comment and the call below it.
const COMMENT_LINES_ABOVE: usize = 6;

/// Returns all mutants below `folder`, by name. One that breaks several places is one mutant.
pub fn find(folder: &Path) -> Result<Vec<Mutant>> {
    let mut found = BTreeMap::new();
    for path in files(folder, "rs")? {
        let text = fs::read_to_string(&path)?;
        for mutant in in_text(&text).with_context(|| path.display().to_string())? {
            let known = found.entry(mutant.name.clone()).or_insert_with(|| mutant.clone());
            known.equivalent = known.equivalent.take().or(mutant.equivalent);
        }
    }
    Ok(found.into_values().collect())
}

fn in_text(text: &str) -> Result<Vec<Mutant>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(CALL) {
        let arguments = text[at + CALL.len()..].trim_start();
        let line = text[..at].lines().last().unwrap_or_default();
        let is_comment = line.trim_start().starts_with("//");
        let Some(name) = arguments.strip_prefix('"').filter(|_| !is_comment) else { continue };
        let name = name.split('"').next().unwrap_or_default();
        ensure!(name.split('.').count() == 3, "mutant {name:?} is not AREA.PLACE.WHAT");
        found.push(Mutant { name: name.to_owned(), equivalent: reason_above(&text[..at]) });
    }
    Ok(found)
}

/// Returns the text of the nearest comment above that gives the reason why the mutant cannot be
/// killed.
fn reason_above(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let near = &lines[lines.len().saturating_sub(COMMENT_LINES_ABOVE + 1)..];
    let start = near.iter().rposition(|line| line.contains(EQUIVALENT))?;
    if near[start..near.len() - 1].iter().any(|line| line.contains(CALL)) {
        return None; // it belongs to a mutant in between
    }
    let comment = near[start..].iter().map_while(|line| line.trim_start().strip_prefix("//"));
    let sentence = comment.map(str::trim).collect::<Vec<_>>().join(" ");
    Some(sentence.split_once(EQUIVALENT)?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_reasons_are_found_and_comments_are_not_mutants() {
        let text = r#"
            // `mutated("a.b.in-a-comment", true, false)` names one.
            let syncs = mutated("log.commit.skips-sync", true, false);
            // EQUIVALENT: the host has written it
            // by then.
            let is_late = mutated(
                "raw.flush.late", false, true,
            );
            let is_early = mutated("raw.flush.early", false, true);
        "#;
        let mutant = |name: &str, why: Option<&str>| Mutant {
            name: name.into(),
            equivalent: why.map(str::to_owned),
        };
        let expected = [
            mutant("log.commit.skips-sync", None),
            mutant("raw.flush.late", Some("the host has written it by then.")),
            mutant("raw.flush.early", None),
        ];
        assert_eq!(in_text(text).unwrap(), expected);
        assert!(in_text(r#"mutated("nameless", 1, 2)"#).is_err());
    }
}
