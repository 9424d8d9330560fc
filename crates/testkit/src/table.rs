//! Checks of tables in documents against the code, and of the tests that they name.

use std::fs;
use std::path::Path;

/// Checks that the table of a document behind this mark has these rows.
///
/// # Panics
///
/// If it has others: the message is the correct table.
pub fn assert_rows(document: &str, mark: &str, expected: &[String]) {
    let table = document.split_once(mark).expect("the mark of the table").1;
    let rows: Vec<&str> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows, expected, "write behind {mark}{}", expected.join("\n"));
}

fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry")) {
        match fs::read_to_string(entry.path()) {
            Ok(source) => text.push_str(&source),
            // A folder.
            Err(_) => sources(&entry.path(), text),
        }
    }
}

/// Checks that the sources in these folders have tests of these names.
///
/// # Panics
///
/// If one is missing.
pub fn assert_tests<'name>(folders: &[&Path], tests: impl IntoIterator<Item = &'name &'name str>) {
    let mut text = String::new();
    folders.iter().for_each(|folder| sources(folder, &mut text));
    for test in tests {
        assert!(text.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}
