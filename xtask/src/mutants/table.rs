//! The table of docs/testing.md.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;
use super::suites::Verdict;

const BEGIN: &str = "<!-- written by `make mutants` -->\n";
const END: &str = "<!-- end of what `make mutants` writes -->";

/// Replaces the findings in the document.
pub fn write(document: &Path, findings: &[Finding]) -> Result<()> {
    let text = fs::read_to_string(document)?;
    let (before, rest) = text.split_once(BEGIN).context("no place for the table")?;
    let (_, after) = rest.split_once(END).context("no end of the table")?;
    fs::write(document, format!("{before}{BEGIN}{}{END}{after}", table(findings)))?;
    Ok(())
}

fn table(findings: &[Finding]) -> String {
    let mut text = format!("{}\n\n| mutant | result |\n|---|---|\n", summary(findings));
    for Finding { mutant, verdict } in findings {
        let _ = writeln!(text, "| `{}` | {verdict} |", mutant.name);
    }
    text
}

fn summary(findings: &[Finding]) -> String {
    let count = |is: fn(&Verdict) -> bool| findings.iter().filter(|it| is(&it.verdict)).count();
    format!(
        "{} mutants: {} killed, {} equivalent, {} survived.",
        findings.len(),
        count(|it| matches!(it, Verdict::Killed(_) | Verdict::Hangs(_))),
        count(|it| matches!(it, Verdict::Equivalent(_))),
        count(|it| *it == Verdict::Survived),
    )
}

#[cfg(test)]
mod tests {
    use super::super::source::Mutant;
    use super::*;

    #[test]
    fn the_table_replaces_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let document = place.path().join("testing.md");
        fs::write(&document, format!("a\n{BEGIN}old\n{END}\nz\n")).unwrap();
        let mutant = Mutant { name: "a.b.c".into(), equivalent: None };
        let finding = Finding { mutant, verdict: Verdict::Killed("image x".into()) };
        write(&document, &[finding]).unwrap();
        let text = fs::read_to_string(&document).unwrap();
        assert!(text.starts_with("a\n") && text.ends_with("\nz\n") && !text.contains("old"));
        assert!(text.contains("1 mutants: 1 killed, 0 equivalent, 0 survived."), "{text}");
        assert!(text.contains("| `a.b.c` | killed by image x |"), "{text}");
    }
}
