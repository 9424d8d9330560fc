//! Modules of a crate import each other in one direction.
//!
//! A file is a module. It depends on the files whose items its paths name (`crate::…`, `super::…`,
//! `self::…`, or a child's name), in a `use` or anywhere else; a re-exported item counts for the
//! file that defines it, and a re-export by itself is no dependency. A module and its submodules
//! are one unit: dependencies of a submodule on the modules around it do not count. Nor does code
//! for tests, or in macros.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};
use syn::{ItemUse, Path, Visibility};

use super::lists::List;
use super::source::{Source, used};

/// Returns circles of files in each crate.
pub fn check(sources: &[Source], excused: &List) -> Vec<String> {
    let mut files: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        if let Some((root, _)) = source.path.split_once("/src/") {
            files.entry(root).or_default().push(source);
        }
    }
    let crates: Vec<Crate> = files.values().map(|files| Crate::new(files)).collect();
    let describe = |circle: Vec<String>| {
        let files = circle.join(" ");
        (files.clone(), format!("import circle: {files}"))
    };
    let of_crate = |it: &Crate| [circles(&it.edges()), circles(&it.room_edges())].concat();
    let circles: Vec<_> = crates.iter().flat_map(of_crate).map(describe).collect();
    excused.judge(&circles)
}

/// A module path from the root of the crate.
type Name = Vec<String>;

/// The origins of imported and exported names of a module.
#[derive(Default)]
struct Module {
    file: String,
    /// Re-exports and imports: local name, and the path as written.
    names: BTreeMap<String, Vec<String>>,
    /// Paths that it depends on.
    paths: Vec<Vec<String>>,
}

/// The dependency graph.
type Edges = BTreeMap<String, BTreeSet<String>>;

struct Crate {
    modules: BTreeMap<Name, Module>,
}

impl Crate {
    fn new(files: &[&Source]) -> Self {
        let read = |source: &&Source| {
            let mut module = Module { file: source.path.clone(), ..Module::default() };
            module.visit_file(&source.file);
            (module_name(&source.path), module)
        };
        Self { modules: files.iter().map(read).collect() }
    }

    /// Returns the files that each file depends on.
    fn edges(&self) -> Edges {
        let needs = |(name, module): (&Name, &Module)| {
            let needed = self.needs(name, module).into_iter().map(str::to_owned);
            (module.file.clone(), needed.collect())
        };
        self.modules.iter().map(needs).collect()
    }

    /// Returns the top-level modules that each of them depends on, including their submodules.
    fn room_edges(&self) -> Edges {
        let mut rooms = Edges::new();
        for (file, needed) in self.edges() {
            let Some(room) = room(&file) else { continue };
            let others = needed.iter().filter_map(|file| self::room(file));
            rooms.entry(room.clone()).or_default().extend(others.filter(|other| *other != room));
        }
        // Modules without dependencies are included, too.
        for other in rooms.values().flatten().cloned().collect::<Vec<_>>() {
            rooms.entry(other).or_default();
        }
        rooms
    }

    /// Returns the files that a module depends on.
    fn needs<'a>(&'a self, name: &Name, module: &'a Module) -> BTreeSet<&'a str> {
        let around: Vec<&str> = (0..=name.len())
            .filter_map(|words| self.modules.get(&name[..words]))
            .map(|module| &*module.file)
            .collect();
        let defined = |path: &Vec<String>| self.file_of(name, path, 0);
        module.paths.iter().filter_map(defined).filter(|file| !around.contains(file)).collect()
    }

    /// Returns the file that defines `path` as seen in module `at`, if it is in this crate.
    fn file_of(&self, at: &Name, path: &[String], depth: usize) -> Option<&str> {
        const REEXPORTS_MAX: usize = 16;
        let mut words = path.iter();
        let mut here = at.clone();
        let mut rest: Vec<&String> = Vec::new();
        match words.next()?.as_str() {
            "crate" => here = self.root_of(at),
            "self" => {}
            "super" => drop(here.pop()?),
            word => {
                here.push(word.to_owned());
                self.modules.get(&here)?;
            }
        }
        for word in words {
            here.push(word.clone());
            if word == "super" {
                here.truncate(here.len() - 2);
            } else if !rest.is_empty() || !self.modules.contains_key(&here) {
                here.pop();
                rest.push(word);
            }
        }
        let module = self.modules.get(&here)?;
        let Some(item) = rest.first() else { return Some(&module.file) };
        if depth < REEXPORTS_MAX {
            let known =
                module.names.get(*item).and_then(|from| self.file_of(&here, from, depth + 1));
            if known.is_some() {
                return known;
            }
        }
        Some(&module.file)
    }

    /// Programs of a crate have roots of their own.
    fn root_of(&self, at: &Name) -> Name {
        let program = at.iter().take(2).cloned().collect::<Name>();
        if at.first().is_some_and(|word| word == "bin") { program } else { Vec::new() }
    }
}

/// Returns groups of files that depend on each other in a circle.
fn circles(edges: &Edges) -> Vec<Vec<String>> {
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut next: Vec<&str> = edges[from].iter().map(String::as_str).collect();
        while let Some(file) = next.pop() {
            if seen.insert(file) {
                next.extend(edges[file].iter().map(String::as_str));
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (file.as_str(), reached(file))).collect();
    let mut circles = BTreeSet::new();
    for (file, seen) in reach.iter().filter(|(file, seen)| seen.contains(*file)) {
        let back = seen.iter().filter(|other| reach[**other].contains(file));
        circles.insert(back.map(|other| (*other).to_owned()).collect::<Vec<_>>());
    }
    circles.into_iter().collect()
}

/// Returns the top-level module that a file belongs to; the root and programs belong to none.
fn room(file: &str) -> Option<String> {
    let (root, inside) = file.split_once("/src/")?;
    let (room, _) = inside.split_once('/').unwrap_or((inside.trim_end_matches(".rs"), ""));
    (!matches!(room, "lib" | "main" | "bin")).then(|| format!("{root}/src/{room}"))
}

/// Returns the module name of a file: `crates/a/src/b/mod.rs` is module `b`, as `crates/a/src/b.rs`
/// is.
fn module_name(path: &str) -> Name {
    let (_, inside) = path.split_once("/src/").unwrap_or(("", path));
    let words: Vec<&str> = inside.trim_end_matches(".rs").split('/').collect();
    let words = match words.split_last() {
        Some((&("mod" | "lib"), above)) => above,
        Some((&"main", above)) if above.is_empty() => above,
        Some((&"main", above)) if above[0] == "bin" => above,
        _ => &words,
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        for (mut path, name) in used(&item.tree) {
            path.pop_if(|last| *last == "self");
            if name != "*" {
                self.names.insert(name, path.clone());
            }
            if is_private {
                self.paths.push(path);
            }
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|it| it.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let parse = |(path, text): &(&str, &str)| Source::parse(&format!("a/src/{path}"), text);
        let files: Vec<Source> = files.iter().map(|file| parse(file).unwrap()).collect();
        check(&files, &List::default())
    }

    #[test]
    fn modules_that_import_each_other_are_refused() {
        let files = [
            ("lib.rs", "mod b; mod c; mod d;"),
            ("b.rs", "use crate::c::C;\npub struct B;"),
            ("c.rs", "use super::d;\npub struct C;"),
            ("d.rs", "fn f() { crate::b::B; }"),
        ];
        let rooms = "import circle: a/src/b a/src/c a/src/d";
        assert_eq!(circles(&files), ["import circle: a/src/b.rs a/src/c.rs a/src/d.rs", rooms]);
        assert_eq!(circles(&files[..3]), [""; 0]);
    }

    #[test]
    fn a_module_and_its_parts_are_one() {
        let files = [
            ("b/mod.rs", "mod c; mod d;\nfn f() { c::g() }"),
            ("b/c.rs", "use super::f; use super::d::D;"),
            ("b/d.rs", "pub struct D;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
        let siblings = [files[0], files[1], ("b/d.rs", "use super::c::C; pub struct D;")];
        assert_eq!(circles(&siblings), ["import circle: a/src/b/c.rs a/src/b/d.rs"]);
    }

    #[test]
    fn what_is_re_exported_belongs_to_the_file_that_has_it() {
        let files = [
            ("lib.rs", "mod b; mod c; pub use b::B;"),
            ("b.rs", "pub struct B;"),
            ("c.rs", "use crate::B;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
        let back = [files[0], ("b.rs", "use crate::c; pub struct B;"), files[2]];
        let rooms = "import circle: a/src/b a/src/c";
        assert_eq!(circles(&back), ["import circle: a/src/b.rs a/src/c.rs", rooms]);
    }

    #[test]
    fn folders_that_import_each_other_are_refused_though_their_files_do_not() {
        let files = [
            ("b/x.rs", "use crate::c::y::Y;"),
            ("b/z.rs", "pub struct Z;"),
            ("c/y.rs", "pub struct Y;"),
            ("c/w.rs", "use crate::b::z::Z;"),
            ("b.rs", "mod x; pub mod z;"),
            ("c.rs", "pub mod y; mod w;"),
        ];
        assert_eq!(circles(&files), ["import circle: a/src/b a/src/c"]);
    }

    #[test]
    fn tests_may_import_what_they_like() {
        let files = [
            ("b.rs", "pub struct B;\n#[cfg(test)]\nmod tests { use crate::c::C; }"),
            ("c.rs", "use crate::b::B;"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }
}
