//! Each unsafe block and each unsafe impl has a comment on why it is sound. (The compiler's linter
//! checks the workspace; this checks the fuzz targets as well.)

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{ExprUnsafe, ItemImpl};

use super::source::Source;

/// Most lines between the beginning of a statement and the block in it.
const STATEMENT_LINES_MAX: usize = 6;

/// Returns unsafe code without a `SAFETY:` comment above it.
pub fn check(sources: &[Source]) -> Vec<String> {
    sources.iter().flat_map(complaints).collect()
}

fn complaints(source: &Source) -> Vec<String> {
    let mut places = Places::default();
    places.visit_file(&source.file);
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    let silent = places.lines.into_iter().filter(|line| !is_explained(&lines[..*line]));
    silent.map(|line| format!("{}:{line}: unsafe without a SAFETY comment", source.path)).collect()
}

/// Returns whether the last of these lines is explained by the nearest comment above its statement:
/// code that ends a statement ends the search.
fn is_explained(lines: &[&str]) -> bool {
    let (last, above) = lines.split_last().unwrap_or((&"", &[]));
    if last.contains("// SAFETY:") {
        return true;
    }
    let ends = |line: &str| line.ends_with([';', '{', '}']) || line.is_empty();
    let is_comment = |line: &&&str| line.starts_with("//");
    let within = above.iter().rev().take(STATEMENT_LINES_MAX);
    let code = within.take_while(|line| !is_comment(line) && !ends(line)).count();
    let comments = above[..above.len() - code].iter().rev().take_while(is_comment);
    comments.into_iter().any(|line| line.contains("SAFETY:"))
}

/// The lines on which unsafe code begins, counted from 1.
#[derive(Default)]
struct Places {
    lines: Vec<usize>,
}

impl Places {
    fn add(&mut self, span: Span) {
        self.lines.push(span.start().line);
    }
}

impl<'ast> Visit<'ast> for Places {
    fn visit_expr_unsafe(&mut self, block: &'ast ExprUnsafe) {
        self.add(block.unsafe_token.span);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        item.unsafety.iter().for_each(|token| self.add(token.span));
        visit::visit_item_impl(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> usize {
        check(&[Source::parse("a.rs", text).unwrap()]).len()
    }

    #[test]
    fn unsafe_code_without_a_reason_is_refused() {
        assert_eq!(of("fn f() {\n    let x = 1;\n    unsafe { g(x) };\n}"), 1);
        assert_eq!(of("// sound, believe me\nunsafe impl Send for It {}"), 1);
        let other = "fn f() {\n    // SAFETY: of g.\n    unsafe { g() };\n    unsafe { h() };\n}";
        assert_eq!(of(other), 1, "a reason is for one block");
        let far = "// SAFETY: of something else.\nfn f() {\n    unsafe { g() };\n}";
        assert_eq!(of(far), 1, "a reason stands inside the function");
    }

    #[test]
    fn a_reason_stands_above_the_statement_or_on_the_line() {
        assert_eq!(of("// SAFETY: it owns\n// all of it.\nunsafe impl Send for It {}"), 0);
        assert_eq!(
            of("fn f() {\n    // SAFETY: so.\n    let it = g(\n        unsafe { h() },\n    );\n}"),
            0
        );
        assert_eq!(of("fn f() {\n    unsafe { g() }; // SAFETY: so.\n}"), 0);
    }
}
