//! The doors to the host: paths of files are opened, and /proc and /sys read, in the crates that
//! are for it. Files of other crates that do so are listed with the reason, so that the list only
//! shrinks.

use proc_macro2::{Literal, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ExprPath, ItemUse, Lit, Macro};

use super::lists::List;
use super::source::{Source, used};

/// The list of exceptions.
pub const LIST: &str = "host-doors";

/// Crates that are doors: of the daemon; of files of images; of the host's memory and of this
/// process's cgroups, which the guest's tools use, too. And those that are for tests only.
const DOORS: [&str; 5] = ["host", "fileio", "memory", "testkit", "sim"];

/// Beginnings of paths that are an interface of the kernel.
const KERNEL: [&str; 2] = ["/proc", "/sys"];

/// Functions of `File` that take a path.
const OPENS: [&str; 5] = ["open", "create", "create_new", "options", "open_buffered"];

/// Types of `std::fs` that open or make what a path names.
const BUILDERS: [&str; 2] = ["OpenOptions", "DirBuilder"];

/// Returns files that pass by the doors and are not listed, and entries of the list that are no
/// longer needed.
pub fn check(sources: &[Source], listed: &List) -> Vec<String> {
    let is_judged = |source: &&Source| {
        let folder = source.path.strip_prefix("crates/").and_then(|path| path.split('/').next());
        !source.is_test && folder.is_some_and(|folder| !DOORS.contains(&folder))
    };
    let complain = |source: &Source| {
        let mut passed = Passed(None);
        passed.visit_file(&source.file);
        let path = &source.path;
        let why = "give it a function of crates/host, or list it (xtask/tidy/host-doors)";
        passed.0.map(|what| (path.clone(), format!("{path}: {what}: {why}")))
    };
    let found: Vec<_> = sources.iter().filter(is_judged).filter_map(complain).collect();
    listed.judge(&found)
}

/// The first way past the doors in a file.
struct Passed(Option<String>);

impl Passed {
    fn add(&mut self, what: String) {
        self.0.get_or_insert(what);
    }

    fn path(&mut self, names: &[String]) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let is_door = match *names {
            [.., "File", function] => OPENS.contains(&function),
            // Of its types, most describe what is open already.
            ["std", "fs", name, ..] | ["fs", name, ..] => {
                name != "self" && (name.starts_with(char::is_lowercase) || BUILDERS.contains(&name))
            }
            _ => false,
        };
        if is_door {
            self.add(names.join("::"));
        }
    }

    fn text(&mut self, text: &str) {
        if KERNEL.iter().any(|start| text.starts_with(start)) {
            self.add(format!("{text:?}"));
        }
    }

    fn literal(&mut self, literal: Literal) {
        if let Lit::Str(text) = Lit::new(literal) {
            self.text(&text.value());
        }
    }

    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Literal(literal) => self.literal(literal),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Passed {
    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        let names: Vec<String> = path.path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.path(&names);
        visit::visit_expr_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        for (path, _) in used(&item.tree) {
            self.path(&path);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast syn::LitStr) {
        self.text(&text.value());
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.tokens(call.tokens.clone());
    }

    // Documentation is no call.
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str, listed: &str) -> usize {
        let source = Source::parse(path, text).unwrap();
        check(&[source], &List::parse(LIST, listed)).len()
    }

    #[test]
    fn who_passes_by_the_doors_is_listed_or_refused() {
        let path = "crates/daemon/src/a.rs";
        for text in [
            "fn f() { std::fs::read(p); }",
            "use std::fs;\nfn f() { fs::metadata(p); }",
            "use std::fs::read_link;",
            "use std::fs::OpenOptions;",
            "use std::fs::File;\nfn f() { File::open(p); }",
            "const STAT: &str = \"/proc/stat\";",
            "fn f() { g(format!(\"/sys/block/{name}\")); }",
        ] {
            assert_eq!(of(path, text, ""), 1, "{text}");
            assert_eq!(of(path, text, path), 0, "{text}");
            for door in DOORS {
                assert_eq!(of(&format!("crates/{door}/src/a.rs"), text, ""), 0, "{text}");
            }
        }
    }

    #[test]
    fn an_open_file_is_no_door() {
        let path = "crates/daemon/src/a.rs";
        for text in [
            "use std::fs::{self, File};\nfn f(file: &File) { file.metadata(); File::from(fd); }",
            "/// Reads /proc.\nfn f() {}",
            "#[cfg(test)]\nmod tests { fn f() { std::fs::read(p); } }",
        ] {
            assert_eq!(of(path, text, ""), 0, "{text}");
        }
        assert_eq!(of(path, "fn f() {}", path), 1, "it is no longer needed");
    }
}
