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
        assert!(has_test(&text, test), "there is no test {test}");
    }
}

/// Returns whether a function of this name is marked as a test: only attributes are between the
/// mark and the function.
fn has_test(text: &str, name: &str) -> bool {
    let function = format!("fn {name}(");
    text.split("#[test]").skip(1).any(|behind| {
        behind.find(&function).is_some_and(|at| !behind[..at].contains(['{', '}', ';']))
    })
}

#[cfg(test)]
mod tests {
    use super::has_test;

    #[test]
    fn a_function_is_a_test_only_if_it_is_marked() {
        let text = "#[test]\n#[ignore]\nfn marked() {}\nfn helper() {}\n";
        assert!(has_test(text, "marked"));
        assert!(!has_test(text, "helper") && !has_test(text, "missing"));
    }
}
