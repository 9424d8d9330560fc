//! Checks of tables in documents against the code.

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
