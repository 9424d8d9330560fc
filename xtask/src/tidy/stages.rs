//! Stages are independent of each other: the allowed dependencies of each package, and, in the
//! daemon, the one file that names two stages, and the one that names a front end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use proc_macro2::Ident;
use serde_json::Value;
use syn::visit::{self, Visit};
use syn::{Item, ItemUse, Visibility};

use super::source::{Source, used};

/// Allowed dependencies of the packages of the product, in `crates/` and `guest/`. An optional
/// dependency is for tests.
const MAY_KNOW: [(&str, &str); 31] = [
    ("reactor", ""),
    ("memory", ""),
    ("ssd", "block fileio"),
    ("trace", ""),
    ("replay", "block fileio image log formats cache memory ssd trace"),
    ("advise", "block image log formats cache replay ssd trace"),
    ("block", "memory reactor"),
    ("fileio", "block host reactor"),
    // What formats share; the formats, which do not know each other; and what knows all of them.
    ("image", "block fileio"),
    ("raw", "block fileio image"),
    ("qcow2", "block fileio image"),
    ("log-format", "block fileio"),
    ("log-store", "block fileio image log-format"),
    ("log", "block fileio image log-format log-store"),
    ("formats", "block fileio image raw qcow2 log-format log"),
    ("layers", "block"),
    ("classify", "block"),
    ("cache", "block"),
    ("qos", "block fileio"),
    ("host", "block memory"),
    ("frontend", "block host"),
    ("control", "block host"),
    ("resources", "block host memory cache"),
    // No stage, and no front end.
    ("runner", "block reactor"),
    (
        "daemon",
        "block fileio image log formats layers classify cache qos host frontend control runner memory resources trace",
    ),
    ("cli", "block fileio image qcow2 log formats cache qos control daemon replay advise trace"),
    ("testkit", ""),
    ("sim", "block fileio"),
    ("policy", ""),
    ("filecache", "policy memory"),
    ("guest", "filecache memory policy"),
];

/// The FUSE library, and the file that may name it.
const FUSE: (&str, &str) = ("fuser", "guest/filecache/src/library.rs");

/// Features that enable test machinery.
const FOR_TESTS: [&str; 2] = ["testing", "model"];

/// The stages. Formats and files are part of the image stage.
const STAGES: [(&str, &str); 13] = [
    ("flowstone_frontend", "frontend"),
    ("flowstone_classify", "classify"),
    ("flowstone_cache", "cache"),
    ("flowstone_qos", "qos"),
    ("flowstone_layers", "layers"),
    ("flowstone_image", "image"),
    ("flowstone_raw", "image"),
    ("flowstone_qcow2", "image"),
    ("flowstone_log_format", "image"),
    ("flowstone_log_store", "image"),
    ("flowstone_log", "image"),
    ("flowstone_formats", "image"),
    ("flowstone_fileio", "image"),
];
/// The file that may name all of them.
const WIRING: &str = "crates/daemon/src/stack.rs";
/// The stage that only one file may name, and that file.
const FRONT_END: (&str, &str) = ("frontend", "crates/daemon/src/front_end.rs");

/// Returns forbidden dependencies between packages.
pub fn check_dependencies(workspace: &Path) -> Result<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(workspace)
        .output()
        .context("run cargo metadata")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {said}");
    Ok(judge(&serde_json::from_slice(&output.stdout)?))
}

fn judge(metadata: &Value) -> Vec<String> {
    let root = Path::new(text(&metadata["workspace_root"]));
    let packages = metadata["packages"].as_array().into_iter().flatten();
    packages.flat_map(|package| complaints(root, package)).collect()
}

/// Returns the forbidden dependencies of a package that is released, or that others depend on.
fn complaints(root: &Path, package: &Value) -> Vec<String> {
    let manifest = Path::new(text(&package["manifest_path"]));
    let Some(name) = manifest.strip_prefix(root).ok().and_then(folder_in_crates) else {
        return Vec::new();
    };
    let Some((_, known)) = MAY_KNOW.iter().find(|(it, _)| *it == name) else {
        return vec![format!("crates/{name}: say in xtask/src/tidy/stages.rs what it may know")];
    };
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for dependency in dependencies.filter(|it| it["kind"].is_null() && it["optional"] == false) {
        let Some(other) = text(&dependency["name"]).strip_prefix("flowstone-") else { continue };
        if !known.split(' ').any(|it| it == other) {
            found.push(format!("crates/{name} depends on {other}"));
        }
        let features = for_tests(&dependency["features"]);
        found.extend(
            features.map(|it| format!("crates/{name} enables the feature {it} of {other}")),
        );
    }
    let features = for_tests(&package["features"]["default"]);
    found.extend(features.map(|it| format!("crates/{name} enables its feature {it} by default")));
    found
}

/// Returns the features of a list that no released package enables.
fn for_tests(features: &Value) -> impl Iterator<Item = &str> {
    features.as_array().into_iter().flatten().map(text).filter(|it| FOR_TESTS.contains(it))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the package of `crates/NAME/Cargo.toml`, or below `guest`.
fn folder_in_crates(manifest: &Path) -> Option<&str> {
    let folder = manifest.parent()?;
    let above = folder.parent()?.file_name()?;
    match (above.to_str()?, folder.file_name()?.to_str()?) {
        // The command of the guest; `crates` has one of that name.
        ("guest", "cli") => Some("guest"),
        ("crates" | "guest", name) => Some(name),
        _ => None,
    }
}

/// Returns other files that name the FUSE library, and a complaint if the allowed file does not:
/// then the rule is outdated.
pub fn check_fuse(sources: &[Source]) -> Vec<String> {
    let (library, file) = FUSE;
    let named = |source: &&Source| {
        let mut names = Names { word: library, found: false };
        names.visit_file(&source.file);
        names.found
    };
    let (may, others): (Vec<_>, Vec<_>) =
        sources.iter().filter(named).partition(|source| source.path == file);
    let missing = may.is_empty().then(|| format!("{file}: does not name {library}, as it should"));
    let complain = |it: &Source| format!("{}: names {library}, as only {file} may", it.path);
    others.into_iter().map(complain).chain(missing).collect()
}

/// Searches a file for a word.
struct Names {
    word: &'static str,
    found: bool,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_ident(&mut self, word: &'ast Ident) {
        self.found |= word == self.word;
    }
}

/// Returns files of the daemon, other than the wiring, that name two stages, or a front end: by
/// their crates, or by re-exports of a file of the daemon.
pub fn check_wiring(sources: &[Source]) -> Vec<String> {
    let daemon: Vec<_> = sources
        .iter()
        .filter(|it| it.path.starts_with("crates/daemon/src/") && !it.is_test)
        .collect();
    let mut exported = BTreeMap::new();
    for item in daemon.iter().flat_map(|source| &source.file.items) {
        if let Item::Use(item) = item
            && !matches!(item.vis, Visibility::Inherited)
        {
            exported.extend(used(&item.tree).into_iter().filter_map(|(path, name)| {
                let (_, stage) = STAGES.iter().find(|(root, _)| path[0] == *root)?;
                Some((name, *stage))
            }));
        }
    }
    let complain = |source: &Source| {
        let mut stages = Stages { exported: &exported, found: BTreeSet::new() };
        stages.visit_file(&source.file);
        let (path, stages) = (&*source.path, stages.found);
        let (front_end, its_file) = FRONT_END;
        if stages.contains(front_end) && path != its_file {
            return Some(format!("{path}: names {front_end}, as only {its_file} may"));
        }
        let two =
            (stages.len() > 1 && path != WIRING).then(|| Vec::from_iter(stages).join(" and "));
        two.map(|stages| format!("{path}: names {stages}, as only {WIRING} may"))
    };
    daemon.into_iter().filter_map(complain).collect()
}

/// The stages named in a file.
struct Stages<'a> {
    /// Types of stages re-exported by the daemon itself.
    exported: &'a BTreeMap<String, &'static str>,
    found: BTreeSet<&'static str>,
}

impl<'ast> Visit<'ast> for Stages<'_> {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let of_daemon = used(&item.tree)
            .into_iter()
            .filter(|(path, _)| matches!(path[0].as_str(), "crate" | "super"));
        self.found.extend(of_daemon.filter_map(|(_, name)| self.exported.get(&name)));
        visit::visit_item_use(self, item);
    }

    fn visit_ident(&mut self, word: &'ast Ident) {
        self.found.extend(STAGES.iter().filter(|(it, _)| word == it).map(|(_, stage)| stage));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependency: &Value, features: &Value) -> Vec<String> {
        // The folder around the tree may have any name.
        let manifest = format!("/crates/x/crates/{name}/Cargo.toml");
        let package =
            json!({"manifest_path": manifest, "dependencies": [dependency], "features": features});
        judge(&json!({ "workspace_root": "/crates/x", "packages": [package] }))
    }

    #[test]
    fn a_stage_that_depends_on_another_is_refused() {
        let depends = |on: &str, kind: Value, optional: bool| {
            let name = format!("flowstone-{on}");
            json!({"name": name, "kind": kind, "optional": optional, "features": []})
        };
        let of = |name, dependency: Value| package(name, &dependency, &json!({}));
        assert_eq!(of("image", depends("fileio", Value::Null, false)), [""; 0]);
        let complaint = ["crates/image depends on frontend"];
        assert_eq!(of("image", depends("frontend", Value::Null, false)), complaint);
        assert_eq!(of("image", depends("sim", "dev".into(), false)), [""; 0]);
        assert_eq!(of("image", depends("sim", Value::Null, true)), [""; 0]);
        assert_eq!(of("image", depends("sim", Value::Null, false)).len(), 1);
        assert_eq!(of("unheard", depends("block", Value::Null, false)).len(), 1);
        for other in ["frontend", "qos", "image"] {
            assert_eq!(of("runner", depends(other, Value::Null, false)).len(), 1);
            assert_eq!(of("runner", depends(other, "dev".into(), false)), [""; 0]);
        }
    }

    #[test]
    fn test_machinery_in_the_product_is_refused() {
        let dependency = |features: Value| json!({"name": "flowstone-image", "kind": null, "optional": false, "features": features});
        let of = |features, own| package("daemon", &dependency(features), &own);
        assert_eq!(of(json!([]), json!({"testing": []})), [""; 0]);
        for feature in FOR_TESTS {
            assert_eq!(of(json!([feature]), json!({})).len(), 1);
            assert_eq!(of(json!([]), json!({"default": [feature]})).len(), 1);
        }
    }

    #[test]
    fn the_library_that_speaks_fuse_has_one_home() {
        let home = Source::parse(FUSE.1, "pub use fuser::Session;").unwrap();
        let of = |text| Source::parse("guest/filecache/src/session.rs", text).unwrap();
        let [names_it, does_not] = ["use fuser::Session;", "use crate::library::Session;"].map(of);
        let names_too = [home, names_it];
        assert_eq!(check_fuse(&names_too).len(), 1);
        let [home, names_it] = names_too;
        assert_eq!(check_fuse(&[home, does_not]).len(), 0);
        assert_eq!(check_fuse(&[names_it]).len(), 2, "its home is not among the files");
    }

    #[test]
    fn the_guest_knows_nothing_of_disks() {
        let manifest = "/crates/x/guest/cli/Cargo.toml";
        let block =
            json!({"name": "flowstone-block", "kind": null, "optional": false, "features": []});
        let package = json!({"manifest_path": manifest, "dependencies": [block], "features": {}});
        assert_eq!(
            judge(&json!({ "workspace_root": "/crates/x", "packages": [package] })),
            ["crates/guest depends on block"]
        );
    }

    #[test]
    fn two_stages_in_a_file_that_is_not_the_wiring_are_refused() {
        let text = "use flowstone_image::Image;\nfn f() { flowstone_layers::null() }";
        let of = |path, text| check_wiring(&[Source::parse(path, text).unwrap()]).len();
        assert_eq!(of("crates/daemon/src/report.rs", text), 1);
        assert_eq!(of(WIRING, text), 0);
        let text = "use flowstone_image::Image;\nuse flowstone_fileio::FileIo;";
        assert_eq!(of("crates/daemon/src/report.rs", text), 0);
    }

    #[test]
    fn a_front_end_has_one_file() {
        let parse = |path, text| Source::parse(path, text).unwrap();
        let text = "pub use flowstone_frontend::vhost_user::Server;";
        let its_file = parse(FRONT_END.1, text);
        for path in [WIRING, "crates/daemon/src/disk.rs"] {
            assert_eq!(check_wiring(&[parse(path, text)]).len(), 1);
            let user = parse(path, "use crate::front_end::Server;");
            assert_eq!(check_wiring(&[parse(FRONT_END.1, text), user]).len(), 1);
        }
        assert_eq!(check_wiring(&[its_file]).len(), 0);
    }

    #[test]
    fn a_stage_that_is_re_exported_is_a_stage() {
        let parse = |(path, text): &(&str, &str)| Source::parse(path, text).unwrap();
        let exports = ("crates/daemon/src/lib.rs", "pub use flowstone_qos::{Limit, Weight};");
        let user = ("crates/daemon/src/a.rs", "use flowstone_image::Image;\nuse crate::Limit;");
        assert_eq!(check_wiring(&[exports, user].map(|it| parse(&it))).len(), 1);
        let user = ("crates/daemon/src/a.rs", "use crate::Limit;");
        assert_eq!(check_wiring(&[exports, user].map(|it| parse(&it))).len(), 0);
    }
}
