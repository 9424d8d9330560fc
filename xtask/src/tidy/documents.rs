//! Each path in a table of a document exists: `` `a/b.rs` `` in a cell, and links.
//!
//! A path may begin at the top of the tree, at the document, or at any folder on the way to the
//! file; `*` stands for any characters.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::files::{all_files, relative};

/// Returns the paths in tables that do not exist.
pub fn check(workspace: &Path, documents: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let known = Known::of(workspace)?;
    Ok(documents.iter().flat_map(|(name, text)| known.missing(name, text)).collect())
}

/// All files and folders of the tree, with their path components.
struct Known {
    paths: BTreeSet<String>,
}

impl Known {
    fn of(workspace: &Path) -> Result<Self> {
        Ok(Self::new(all_files(workspace)?.iter().map(|path| relative(workspace, path))))
    }

    fn new(files: impl Iterator<Item = String>) -> Self {
        let mut paths = BTreeSet::new();
        for file in files {
            let folders = file.match_indices('/').map(|(at, _)| file[..at].to_owned());
            paths.extend(folders);
            paths.insert(file);
        }
        Self { paths }
    }

    fn has(&self, path: &str) -> bool {
        let words: Vec<&str> = path.trim_end_matches('/').split('/').collect();
        self.paths.iter().any(|known| {
            let known: Vec<&str> = known.split('/').collect();
            let Some(start) = known.len().checked_sub(words.len()) else { return false };
            known[start..].iter().zip(&words).all(|(known, word)| matches(word, known))
        })
    }

    /// Returns the errors in the tables of a document.
    fn missing(&self, document: &str, text: &str) -> Vec<String> {
        let rows = text.lines().enumerate().filter(|(_, line)| line.starts_with('|'));
        let paths = rows.flat_map(|(at, line)| {
            let named = quoted(line).filter(|it| is_path(it)).chain(linked(line));
            named.map(move |path| (at + 1, path)).collect::<Vec<_>>()
        });
        let missing = paths.filter(|(_, path)| !self.has(path));
        missing.map(|(line, path)| format!("{document}:{line}: there is no `{path}`")).collect()
    }
}

/// Returns whether `word` of a path, in which `*` matches anything, matches `known`.
fn matches(word: &str, known: &str) -> bool {
    match word.split_once('*') {
        None => word == known,
        Some((start, end)) => {
            known.len() >= start.len() + end.len()
                && known.starts_with(start)
                && known.ends_with(end)
        }
    }
}

/// Returns the texts between back quotes.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Returns the targets of the links of a line within the tree.
fn linked(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let targets = targets.map(|target| target.split('#').next().unwrap_or_default());
    targets
        .filter(|target| !target.is_empty() && !target.contains("://"))
        .map(|target| target.trim_start_matches("../").trim_start_matches("./"))
}

/// Returns whether a quoted text is a path in the tree: by its ending, or by its first folder.
fn is_path(text: &str) -> bool {
    const FOLDERS: [&str; 8] =
        ["crates/", "docs/", "tests/", "bench/", "fuzz/", "scripts/", "xtask/", "src/"];
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-*".contains(letter);
    let begins = FOLDERS.iter().any(|folder| text.starts_with(folder));
    let ends = text.ends_with('/') || [".rs", ".md"].iter().any(|ending| text.ends_with(ending));
    text.chars().all(plain) && !text.starts_with(['/', '.']) && (begins || ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(line: &str) -> usize {
        let files = ["crates/a/src/log/tests/trims.rs", "docs/testing.md", "fuzz/Cargo.toml"];
        Known::new(files.iter().map(|file| (*file).to_owned())).missing("x.md", line).len()
    }

    #[test]
    fn a_path_that_leads_nowhere_is_refused() {
        assert_eq!(missing("| `crates/b` | gone |"), 1);
        assert_eq!(missing("| why | `log/tests/rims.rs`, `trims.rs` |"), 1);
        assert_eq!(missing("| why | [how](testign.md) |"), 1);
        assert_eq!(missing("| `crates/*/tests/it` |"), 1);
        assert_eq!(missing("not in a table: `crates/b`"), 0);
    }

    #[test]
    fn paths_from_the_top_or_from_any_folder_are_found() {
        let row = "| `crates/a`, `log/tests/`, `crates/*/src/log` | `trims.rs` | [t](../docs/testing.md#x) |";
        assert_eq!(missing(row), 0);
        assert_eq!(
            missing("| `ext4/xfs`, `/dev/vda`, `n/2`, `1 TiB/s` | [q](https://x.org/a.md) |"),
            0
        );
    }
}
