//! `make mutants` breaks what exists: each file named in `.cargo/mutants` is there, and the table
//! of docs/testing.md names the mutants of the sources.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::mutants;

const DOCUMENT: &str = "docs/testing.md";
const CONFIGURATIONS: &str = ".cargo/mutants";

/// Returns files that are named and missing, and the differences between table and sources.
pub fn check(workspace: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for entry in fs::read_dir(workspace.join(CONFIGURATIONS))? {
        let path = entry?.path();
        let exists = |named: &str| workspace.join(named).exists();
        let missing = missing_files(&fs::read_to_string(&path)?, exists);
        let complain = |named| format!("{}: there is no {named}", path.display());
        complaints.extend(missing.into_iter().map(complain));
    }
    let names = mutants::names(workspace)?;
    complaints.extend(differences(&names, &fs::read_to_string(workspace.join(DOCUMENT))?));
    Ok(complaints)
}

/// Returns the source files named in a configuration that do not exist.
fn missing_files(text: &str, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let named = text.split('"').filter(|word| word.ends_with(".rs") && !word.contains('*'));
    named.filter(|name| !exists(name)).map(str::to_owned).collect()
}

fn differences(names: &BTreeSet<String>, document: &str) -> Vec<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter_map(|row| row.split_once("` | "));
    let is_mutant = |name: &&str| name.split('.').count() == 3 && !name.contains('/');
    let listed: BTreeSet<String> =
        rows.map(|(name, _)| name).filter(is_mutant).map(str::to_owned).collect();
    let unlisted = names.difference(&listed).map(|name| format!("{DOCUMENT}: no mutant `{name}`"));
    let gone = listed.difference(names).map(|name| format!("{DOCUMENT}: `{name}` is no mutant"));
    unlisted.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_has_moved_is_refused() {
        let text = r#"examine_globs = ["crates/a/src/b.rs", "crates/c/src/*.rs", "crates/d.rs"]"#;
        assert_eq!(missing_files(text, |name| name == "crates/a/src/b.rs"), ["crates/d.rs"]);
    }

    #[test]
    fn a_mutant_renamed_in_the_sources_only_is_refused() {
        let names = BTreeSet::from(["a.b.c", "a.b.new"].map(str::to_owned));
        let table = "| `a.b.c` | killed by x |\n| `a.b.old` | killed by x |\n| `--option` | y |\n";
        let found = differences(&names, table);
        let wanted =
            ["docs/testing.md: no mutant `a.b.new`", "docs/testing.md: `a.b.old` is no mutant"];
        assert_eq!(found, wanted);
    }
}
