//! Rules about calls of given functions, outside of tests: each call is in a list, with the reason
//! why it is allowed, or is refused.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{ExprMethodCall, ExprPath};

use super::lists::List;
use super::source::Source;

/// A rule.
pub struct Rule {
    /// Name of its list.
    pub list: &'static str,
    /// Beginnings of the paths of the files that it is about.
    pub places: &'static [&'static str],
    /// Methods whose calls are listed.
    pub methods: &'static [&'static str],
    /// Functions whose calls are listed, and types of which those of all functions are.
    pub functions: &'static [&'static str],
    /// What is wrong with a call that is not listed, and what to do.
    pub why: &'static str,
}

impl Rule {
    /// Returns calls that are not listed, and entries of the list that are no longer needed.
    pub fn check(&self, sources: &[Source], listed: &List) -> Vec<String> {
        let is_in = |path: &str| self.places.iter().any(|start| path.starts_with(start));
        let judged = sources.iter().filter(|source| !source.is_test && is_in(&source.path));
        let found: BTreeSet<_> = judged.flat_map(|source| self.calls(source)).collect();
        listed.judge(&Vec::from_iter(found))
    }

    fn calls(&self, source: &Source) -> Vec<(String, String)> {
        let (path, Self { list, why, .. }) = (&source.path, self);
        let complain = |call: String| {
            (format!("{path} {call}"), format!("{path}: {call} {why} (xtask/tidy/{list})"))
        };
        calls_in(source, self.methods, self.functions).into_iter().map(complain).collect()
    }
}

/// Returns the given methods, and functions or types' functions, that are called. A function is
/// named from that name on: `Instant::now`.
fn calls_in(source: &Source, methods: &[&str], functions: &[&str]) -> BTreeSet<String> {
    let mut calls = Calls { methods, functions, found: BTreeSet::new() };
    calls.visit_file(&source.file);
    calls.found
}

struct Calls<'names> {
    methods: &'names [&'names str],
    functions: &'names [&'names str],
    found: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Calls<'_> {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let name = call.method.to_string();
        if self.methods.contains(&name.as_str()) {
            self.found.insert(name);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let names: Vec<String> = path.path.segments.iter().map(|it| it.ident.to_string()).collect();
        let first = names.iter().position(|name| self.functions.contains(&name.as_str()));
        if let Some(first) = first {
            let is_variant =
                first + 1 == names.len() && names[first].starts_with(char::is_uppercase);
            // An enum may have a variant of that name.
            if !is_variant {
                self.found.insert(names[first..].join("::"));
            }
        }
        visit::visit_expr_path(self, path);
    }
}
