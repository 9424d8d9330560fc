//! Each test named in a table of bounds or promises exists: the last cell of a row, if the head of
//! its table says `test`, `tests` or `shown by`.
//!
//! A word is the name of a test, or a part of it with `…` for the rest, or the file or folder of
//! the tests. Beside `shown by` there are sentences, too, and only a part with `…` is a name.

use std::collections::{BTreeMap, BTreeSet};

use super::source::Source;

/// The documents with such tables.
const DOCUMENTS: [&str; 2] = ["docs/bounds.md", "docs/durability.md"];

/// Returns the words in tables that name nothing.
pub fn check(documents: &BTreeMap<String, String>, sources: &[Source]) -> Vec<String> {
    let known = Known::of(sources);
    DOCUMENTS.iter().flat_map(|name| known.missing(name, &documents[*name])).collect()
}

/// The possible meanings of a word.
#[derive(Default)]
struct Known {
    tests: BTreeSet<String>,
    places: BTreeSet<String>,
}

impl Known {
    fn of(sources: &[Source]) -> Self {
        let mut known = Self::default();
        for source in sources {
            known.tests.extend(tests_in(&source.text));
            let words = source.path.split('/');
            known.places.extend(words.map(|word| word.trim_end_matches(".rs").to_owned()));
        }
        known
    }

    fn has(&self, word: &str) -> bool {
        let place = word.trim_end_matches(".rs");
        match word.split_once('…') {
            Some(("", rest)) => self.tests.iter().any(|test| test.contains(rest.trim_matches('…'))),
            Some((start, _)) => self.tests.iter().any(|test| test.starts_with(start)),
            None => self.tests.contains(word) || self.places.contains(place),
        }
    }

    /// Returns the errors in the tables of a document.
    fn missing(&self, document: &str, text: &str) -> Vec<String> {
        let (mut complaints, mut head, mut before) = (Vec::new(), "", "");
        for (at, line) in text.lines().enumerate() {
            let last = line.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
            if line.starts_with('|') && !before.starts_with('|') {
                head = last;
            } else if line.starts_with('|') && ["test", "tests", "shown by"].contains(&head) {
                let words = last.split([' ', ',', ';', '(', ')']).filter(|word| is_name(word));
                let words = words.filter(|word| head != "shown by" || word.contains('…'));
                let missing = words.filter(|word| !self.has(word));
                let complain = |word| format!("{document}:{}: there is no test `{word}`", at + 1);
                complaints.extend(missing.map(complain));
            }
            before = line;
        }
        complaints
    }
}

/// Returns the names of the tests in a text: only attributes are between the mark and the function.
fn tests_in(text: &str) -> impl Iterator<Item = String> {
    text.match_indices("fn ").filter_map(|(at, word)| {
        let name = text[at + word.len()..].split('(').next().unwrap_or_default();
        let mark = text[..at].rfind("#[test]")?;
        let is_test = !text[mark..at].contains(['{', '}', ';']);
        is_test.then(|| name.to_owned())
    })
}

/// Returns whether a word is a name, and not part of a sentence.
fn is_name(word: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_.…".contains(letter);
    !word.is_empty() && word.chars().all(plain) && !word.starts_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_exist_is_refused() {
        let text = "#[test]\nfn a_bound_is_kept() {}\nfn no_test() {}\n";
        let source = Source::parse("crates/a/src/bounds/tests.rs", text).unwrap();
        let known = Known::of(&[source]);
        let missing = |cell: &str| {
            let table = format!("| what | test |\n|---|---|\n| x | {cell} |\n");
            known.missing("x.md", &table).len()
        };
        let good = "bounds a_bound…; tests.rs, …is_kept, a_bound_is_kept";
        assert_eq!(missing(good), 0);
        assert_eq!(missing(""), 0);
        assert_eq!(missing("bounds a_bond…; …is_lifted, no_test, boundaries"), 4);
        assert_eq!(
            known.missing("x.md", "| what | tests |\n|---|---|\n| x | no_test |\n").len(),
            1
        );
        let promises =
            "| promise | shown by |\n|---|---|\n| x | a sentence (a_bound…), …lifted |\n";
        assert_eq!(known.missing("x.md", promises), ["x.md:3: there is no test `…lifted`"]);
        assert_eq!(known.missing("x.md", "| what | why |\n|---|---|\n| x | a_bond… |\n").len(), 0);
    }
}
