//! Finds calls of given functions in a file, outside of its tests.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{ExprMethodCall, ExprPath};

use super::source::Source;

/// Returns the given methods, and functions or types' functions, that are called. A function is
/// named from that name on: `Instant::now`.
pub fn calls_in(source: &Source, methods: &[&str], functions: &[&str]) -> BTreeSet<String> {
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
