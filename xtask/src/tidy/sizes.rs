//! Limits the length of files and the width of comments.

use super::lists::List;
use super::source::Source;

/// Most lines of a file without its tests.
const LINES_MAX: usize = 400;
/// Most columns of a comment line; rustfmt does not wrap these.
const COLUMNS_MAX: usize = 100;

/// Returns files that are too long and are not in `excused`, and those in it that are not too long.
pub fn check(sources: &[Source], excused: &List) -> Vec<String> {
    let lines = sources.iter().filter(|source| !source.is_test).map(|it| (it.lines(), it));
    let long = lines.filter(|(lines, _)| *lines > LINES_MAX).map(|(lines, source)| {
        let complaint = format!("{}: {lines} lines, more than {LINES_MAX}", source.path);
        (source.path.clone(), complaint)
    });
    excused.judge(&long.collect::<Vec<_>>())
}

/// Returns comments that are too wide, except words that cannot be split.
pub fn check_widths(sources: &[Source]) -> Vec<String> {
    let is_wide = |line: &&str| {
        line.trim_start().starts_with("//")
            && line.chars().count() > COLUMNS_MAX
            && line.split_whitespace().nth(2).is_some()
    };
    let wide = |source: &Source| source.text.lines().filter(is_wide).count();
    let found = sources.iter().map(|source| (source, wide(source))).filter(|(_, count)| *count > 0);
    found
        .map(|(source, count)| {
            format!("{}: {count} comments wider than {COLUMNS_MAX} columns", source.path)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, lines: usize) -> Source {
        let tests = "#[cfg(test)]\nmod tests {\n    fn it() {}\n}\n";
        Source::parse(path, &("// a line\n".repeat(lines) + tests)).unwrap()
    }

    #[test]
    fn a_wide_comment_is_refused_and_a_wide_word_is_not() {
        let words = "// ".to_owned() + &"word ".repeat(20);
        let word = "// ".to_owned() + &"w".repeat(COLUMNS_MAX);
        let check = |text: &str| check_widths(&[Source::parse("a.rs", text).unwrap()]).len();
        assert_eq!((check(&words), check(&word)), (1, 0));
        assert_eq!(check(&words[..COLUMNS_MAX]), 0);
    }

    #[test]
    fn a_long_file_is_refused_unless_it_is_listed_and_tests_do_not_count() {
        let files = [
            source("a.rs", LINES_MAX + 1),
            source("b.rs", LINES_MAX),
            source("x/tests/c.rs", LINES_MAX + 1),
        ];
        assert_eq!(check(&files, &List::default()), ["a.rs: 401 lines, more than 400"]);
        assert_eq!(check(&files, &List::parse("list", "a.rs")), [""; 0]);
        assert_eq!(check(&files[1..], &List::parse("list", "a.rs")).len(), 1);
    }
}
