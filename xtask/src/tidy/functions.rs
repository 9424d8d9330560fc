//! Limits the length of functions.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItemFn, ItemFn, Signature, TraitItemFn};

use super::lists::List;
use super::source::Source;

/// Most lines of a function, from its name to its last brace.
const LINES_MAX: usize = 60;

/// Returns functions that are too long and are not in `excused`, and those in it that are not too
/// long.
pub fn check(sources: &[Source], excused: &List) -> Vec<String> {
    excused.judge(&sources.iter().flat_map(long_functions).collect::<Vec<_>>())
}

/// Returns `PATH::NAME` of each, and the complaint about it.
fn long_functions(source: &Source) -> Vec<(String, String)> {
    let mut functions = Functions::default();
    functions.visit_file(&source.file);
    let long = functions.found.into_iter().filter(|(_, lines)| *lines > LINES_MAX);
    long.map(|(name, lines)| {
        let name = format!("{}::{name}", source.path);
        let complaint = format!("{name}: {lines} lines, more than {LINES_MAX}");
        (name, complaint)
    })
    .collect()
}

/// The functions of a file, with their numbers of lines.
#[derive(Default)]
struct Functions {
    found: Vec<(String, usize)>,
}

impl Functions {
    fn add(&mut self, signature: &Signature, whole: Span) {
        let lines = whole.end().line - signature.fn_token.span().start().line + 1;
        self.found.push((signature.ident.to_string(), lines));
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.sig, function.span());
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.sig, function.span());
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        self.add(&function.sig, function.span());
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
    }

    #[test]
    fn a_function_over_the_limit_is_refused_unless_it_is_listed() {
        let method = format!("impl It {{ {} }}", function("method", LINES_MAX + 1));
        let text = function("fits", LINES_MAX) + &function("long", LINES_MAX + 1) + &method;
        let source = [Source::parse("a.rs", &text).unwrap()];
        let complaints = check(&source, &List::default());
        assert_eq!(
            complaints,
            ["a.rs::long: 61 lines, more than 60", "a.rs::method: 61 lines, more than 60"]
        );
        let list = List::parse("list", "a.rs::long\na.rs::method\n");
        assert_eq!(check(&source, &list), [""; 0]);
        let list = List::parse("list", "a.rs::long\na.rs::method\na.rs::fits\n");
        assert_eq!(check(&source, &list), ["a.rs::fits: take it off xtask/tidy/list"]);
    }
}
