//! `make mutants` breaks what exists: each file named in `.cargo/mutants` is there, and the table
//! of docs/testing.md names the mutants of the sources. All of these have one form.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::Result;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ExprBinary, ExprCall, ExprClosure, Local, Stmt};

use super::source::Source;
use crate::mutants;

/// What breaks a step.
const FUNCTION: &str = "mutated";
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

/// Returns the mutants of another form than a value of its own: that of a `let`, or of a function,
/// computed before without `&&` and `||`. A condition that a mutant is joined to has to be read
/// twice, with the mutant and without it.
pub fn check_form(sources: &[Source]) -> Vec<String> {
    let complain = |source: &Source| -> Vec<String> {
        let mut calls = Calls::default();
        calls.visit_file(&source.file);
        let other = calls.all.difference(&calls.alone).chain(&calls.joined);
        let complain = |(line, _): &(usize, usize)| {
            let (path, form) = (&source.path, "`let x = mutated(\"a.b.c\", right, wrong);`");
            format!("{path}:{line}: a mutant is a value on a line of its own: {form}")
        };
        other.map(complain).collect()
    };
    sources.iter().flat_map(complain).collect()
}

/// Places of the calls of [`FUNCTION`].
#[derive(Default)]
struct Calls {
    all: BTreeSet<(usize, usize)>,
    /// Those that are a value of their own.
    alone: BTreeSet<(usize, usize)>,
    /// Those with joined conditions in them.
    joined: BTreeSet<(usize, usize)>,
}

impl Calls {
    fn note_alone(&mut self, value: &Expr) {
        self.alone.extend(as_call(value).map(place));
    }
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_local(&mut self, local: &'ast Local) {
        let init = local.init.as_ref().filter(|init| init.diverge.is_none());
        init.into_iter().for_each(|init| self.note_alone(&init.expr));
        visit::visit_local(self, local);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        if let Some(Stmt::Expr(value, None)) = block.stmts.last() {
            self.note_alone(value);
        }
        visit::visit_block(self, block);
    }

    fn visit_expr_closure(&mut self, closure: &'ast ExprClosure) {
        self.note_alone(&closure.body);
        visit::visit_expr_closure(self, closure);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if is_mutant(call) {
            self.all.insert(place(call));
            let mut joins = Joins(false);
            joins.visit_expr_call(call);
            self.joined.extend(joins.0.then(|| place(call)));
        }
        visit::visit_expr_call(self, call);
    }
}

/// Whether there is a joined condition.
struct Joins(bool);

impl<'ast> Visit<'ast> for Joins {
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        self.0 |= matches!(binary.op, BinOp::And(_) | BinOp::Or(_));
        visit::visit_expr_binary(self, binary);
    }
}

fn as_call(value: &Expr) -> Option<&ExprCall> {
    match value {
        Expr::Call(call) if is_mutant(call) => Some(call),
        _ => None,
    }
}

fn is_mutant(call: &ExprCall) -> bool {
    let Expr::Path(path) = &*call.func else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == FUNCTION)
}

fn place(call: &ExprCall) -> (usize, usize) {
    let start = call.span().start();
    (start.line, start.column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_is_a_value_of_its_own() {
        let complaints = |body: &str| {
            let text = format!("fn f(a: bool, b: bool) -> bool {{ {body} }}");
            check_form(&[Source::parse("x.rs", &text).unwrap()]).len()
        };
        let call = r#"mutated("a.b.c", a, true)"#;
        let right = [
            format!("let a = {call}; a && b"),
            format!("let a = || {call}; a()"),
            format!("let a = a && b; {call}"),
        ];
        let wrong = [
            format!("if {call} {{ g() }} b"),
            format!("let a = b || {call}; a"),
            format!("b && !{call}"),
            format!("match {call} {{ _ => b }}"),
            format!("g({call})"),
            format!("let Some(a) = {call} else {{ return b }}; a"),
            r#"let a = mutated("a.b.c", a && b, true); a"#.to_owned(),
        ];
        for body in right {
            assert_eq!(complaints(&body), 0, "{body}");
        }
        for body in wrong {
            assert_eq!(complaints(&body), 1, "{body}");
        }
    }

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
