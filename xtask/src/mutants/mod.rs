//! Protocol mutants (crates/reactor/src/mutant.rs), and the test that kills each.
//!
//! All of them are compiled into one set of test binaries, and chosen one at a time by
//! `FLOWSTONE_MUTANT`, so a run costs the tests' time and no compilation. A mutant is killed when a
//! test fails or never ends. A mutant that no test can kill has the reason beside it in the source,
//! in a comment that begins with `EQUIVALENT:`.

mod source;
mod suites;
mod table;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use self::source::Mutant;
use self::suites::{Suites, Verdict};

/// The result for a mutant.
pub struct Finding {
    mutant: Mutant,
    verdict: Verdict,
}

/// Returns the names of all mutants.
pub fn names(workspace: &Path) -> Result<BTreeSet<String>> {
    Ok(all(workspace)?.into_iter().map(|mutant| mutant.name).collect())
}

fn all(workspace: &Path) -> Result<Vec<Mutant>> {
    let mut all = source::find(&workspace.join("crates"))?;
    all.extend(source::find(&workspace.join("guest"))?);
    Ok(all)
}

/// Tries the mutants whose names contain one of `wanted`, or all.
pub fn run(workspace: &Path, wanted: &[String]) -> Result<()> {
    let all = all(workspace)?;
    let is_wanted = |mutant: &Mutant| {
        wanted.is_empty() || wanted.iter().any(|part| mutant.name.contains(part.as_str()))
    };
    let count = all.len();
    let chosen: Vec<Mutant> = all.into_iter().filter(is_wanted).collect();
    ensure!(!chosen.is_empty(), "no mutant has a name with {wanted:?}");
    let suites = Suites::build(workspace)?;
    let unharmed = suites.try_all(None)?;
    ensure!(unharmed == Verdict::Survived, "a test fails without any mutant: {unharmed}");
    let mut findings = Vec::new();
    for mutant in chosen {
        let verdict = match &mutant.equivalent {
            Some(why) => Verdict::Equivalent(why.clone()),
            None => suites.try_all(Some(&mutant))?,
        };
        println!("{}: {verdict}", mutant.name);
        findings.push(Finding { mutant, verdict });
    }
    if findings.len() == count {
        let document = workspace.join("docs/testing.md");
        table::write(&document, &findings).with_context(|| document.display().to_string())?;
    }
    let survivors: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::Survived)
        .map(|finding| &*finding.mutant.name)
        .collect();
    println!("{} mutants, {} survived", findings.len(), survivors.len());
    if survivors.is_empty() { Ok(()) } else { bail!("no test kills {}", survivors.join(", ")) }
}
