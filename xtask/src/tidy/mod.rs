//! Rules of the tree that readers may rely on, and no compiler checks.
//!
//! Each rule reads the tree and reports violations, one line each. It has a test with a small bad
//! sample, which it must reject.

mod anchors;
mod calls;
mod clocks;
mod documents;
mod doors;
mod host_calls;
mod imports;
mod lists;
mod mutants;
mod named_tests;
mod sizes;
mod source;
mod stages;

use std::path::Path;

use anyhow::{Result, ensure};

use self::lists::List;
use crate::files;

/// Fails with all violations in the tree.
pub fn run(workspace: &Path) -> Result<()> {
    let (sources, documents) = (source::read_all(workspace)?, files::documents(workspace)?);
    let list = |name: &str| List::read(&workspace.join("xtask/tidy").join(name));
    let complaints = [
        imports::check(&sources, &list("import-circles")?),
        sizes::check(&sources, &list("long-files")?),
        sizes::check_widths(&sources),
        host_calls::RULE.check(&sources, &list(host_calls::RULE.list)?),
        clocks::RULE.check(&sources, &list(clocks::RULE.list)?),
        doors::check(&sources, &list(doors::LIST)?),
        stages::check_dependencies(workspace)?,
        stages::check_wiring(&sources),
        stages::check_fuse(&sources),
        documents::check(workspace, &documents)?,
        anchors::check(&documents),
        named_tests::check(&documents, &sources),
        mutants::check(workspace)?,
        mutants::check_form(&sources),
    ];
    let complaints = complaints.concat();
    ensure!(complaints.is_empty(), "the tree is not tidy:\n{}", complaints.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_tree_is_tidy() {
        if let Err(untidy) = super::run(&crate::workspace()) {
            panic!("{untidy}");
        }
    }
}
