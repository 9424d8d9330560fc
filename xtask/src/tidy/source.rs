//! The Rust files of the tree, parsed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::{Attribute, File, Ident, Item, ItemMod, Meta, UseTree};

use crate::files::{files, relative};

/// Folders with Rust code, below the top of the tree.
const FOLDERS: [&str; 6] = ["crates", "guest", "tests", "bench", "fuzz", "xtask"];

/// A Rust file.
pub struct Source {
    /// Path from the top of the tree, with `/`.
    pub path: String,
    pub text: String,
    /// Without its items that are compiled for tests only.
    pub file: File,
    /// Those items.
    tests: Vec<Item>,
    /// Compiled for tests only.
    pub is_test: bool,
}

impl Source {
    /// Parses a text.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let mut file = syn::parse_file(text).with_context(|| path.to_owned())?;
        let tests = take_tests(&mut file.items);
        let mut folders = path.split('/');
        let is_test = folders.any(|folder| folder == "tests" || folder == "tests.rs");
        Ok(Self { path: path.to_owned(), text: text.to_owned(), file, tests, is_test })
    }

    /// Returns the paths, without extension, of its modules that are for tests only.
    fn test_modules(&self) -> Vec<String> {
        let place = self.path.trim_end_matches(".rs");
        let folder = ["/mod", "/lib", "/main"].iter().find_map(|end| place.strip_suffix(end));
        let modules = self.tests.iter().filter_map(|item| match item {
            Item::Mod(module) => Some(&module.ident),
            _ => None,
        });
        modules.map(|name| format!("{}/{name}", folder.unwrap_or(place))).collect()
    }

    /// Counts its lines without those for tests.
    pub fn lines(&self) -> usize {
        let lines = |item: &Item| item.span().end().line - item.span().start().line + 1;
        self.text.lines().count() - self.tests.iter().map(lines).sum::<usize>()
    }
}

/// Reads all Rust files of the tree.
pub fn read_all(workspace: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    for path in FOLDERS.iter().map(|folder| files(&workspace.join(folder), "rs")) {
        for path in path? {
            let name = relative(workspace, &path);
            sources.push(Source::parse(&name, &fs::read_to_string(&path)?)?);
        }
    }
    let for_tests: Vec<String> = sources.iter().flat_map(Source::test_modules).collect();
    for source in &mut sources {
        let is_in = |module: &String| {
            let rest = source.path.strip_prefix(module.as_str());
            rest.is_some_and(|rest| rest.starts_with(['.', '/']))
        };
        source.is_test |= for_tests.iter().any(is_in);
    }
    Ok(sources)
}

/// Returns what a `use` brings in: the path of each item as written, and its local name; that of a
/// glob is `*`.
pub fn used(tree: &UseTree) -> Vec<(Vec<String>, String)> {
    let named = |from: &Ident, to: &Ident| vec![(vec![from.to_string()], to.to_string())];
    match tree {
        UseTree::Path(path) => {
            let first = path.ident.to_string();
            let rest = used(&path.tree).into_iter();
            rest.map(|(rest, name)| ([vec![first.clone()], rest].concat(), name)).collect()
        }
        UseTree::Group(group) => group.items.iter().flat_map(used).collect(),
        UseTree::Name(name) => named(&name.ident, &name.ident),
        UseTree::Rename(name) => named(&name.ident, &name.rename),
        UseTree::Glob(_) => vec![(Vec::new(), "*".to_owned())],
    }
}

/// Takes out what is compiled for tests only, also in modules.
fn take_tests(items: &mut Vec<Item>) -> Vec<Item> {
    let mut tests: Vec<Item> = items.extract_if(.., |it| is_for_tests(attributes(it))).collect();
    for item in items {
        if let Item::Mod(ItemMod { content: Some((_, inside)), .. }) = item {
            tests.extend(take_tests(inside));
        }
    }
    tests
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Mod(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Returns whether an item is compiled for tests only: `#[test]`, `#[cfg(test)]`, and items that
/// the feature `testing` enables, too.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition == "test" || condition.starts_with("any (test ,")
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_for_tests_is_told_by_its_attributes() {
        let is = |text: &str| match &syn::parse_str(text).unwrap() {
            Item::Mod(module) => is_for_tests(&module.attrs),
            _ => unreachable!("only modules"),
        };
        assert!(is("#[cfg(test)] mod a;") && is("#[cfg(any(test, feature = \"testing\"))] mod a;"));
        assert!(!is("#[cfg(not(test))] mod a;") && !is("#[cfg(feature = \"test\")] mod a;"));
        let source = Source::parse("crates/a/src/b.rs", "#[cfg(test)] mod c; mod d;").unwrap();
        assert_eq!(source.test_modules(), ["crates/a/src/b/c"]);
    }
}
