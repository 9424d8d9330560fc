//! The pages: generated tables between markers in hand-written text, and pictures.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flowstone_experiment::document;

use super::RESULTS;
use super::bench::Bench;
use super::data::Data;
use super::pictures::PICTURES;
use super::tables::{long, tables};

/// Folders of the pages.
const FOLDERS: [&str; 3] = [".", "docs", "docs/evidence"];

/// Writes all tables and pictures that have data into the pages of the project at `root`.
pub fn update(root: &Path, benches: &[Bench]) -> Result<()> {
    for (name, text) in rendered(root, benches)? {
        document::update(&page_of(root, name)?, name, &text)?;
    }
    benches.iter().try_for_each(|bench| bench.draw(root, root))?;
    PICTURES.iter().try_for_each(|it| it.draw(root, &root.join(it.file())))
}

/// Returns the page that has the markers of a table.
pub fn page_of(root: &Path, name: &str) -> Result<PathBuf> {
    let mark = format!("<!-- {name}:begin -->");
    let mut pages = Vec::new();
    for folder in FOLDERS {
        pages.extend(std::fs::read_dir(root.join(folder))?.flatten().map(|entry| entry.path()));
    }
    pages.retain(|path| path.extension().is_some_and(|it| it == "md"));
    let page = pages
        .into_iter()
        .find(|path| std::fs::read_to_string(path).is_ok_and(|it| it.contains(&mark)));
    page.with_context(|| format!("no page of {FOLDERS:?} has {mark}"))
}

/// Returns each table that has data: its name and its text.
pub fn rendered(root: &Path, benches: &[Bench]) -> Result<Vec<(&'static str, String)>> {
    let mut found = Vec::new();
    let of_long = long().into_iter().map(|table| (table, "--long "));
    let tables = tables(false).into_iter().map(|table| (table, ""));
    for (table, option) in tables.chain(of_long) {
        let path = root.join(RESULTS).join(format!("{}.json", table.name));
        if path.exists() {
            let data = Data::read(&path)?;
            let text = format!(
                "{}\n\n{}: `flowstone-bench evidence {option}--only {}`, `--list` has the commands.",
                table.render(&data)?.trim_end(),
                data.origin(),
                table.name
            );
            found.push((table.name, text));
        }
    }
    for bench in benches {
        let text = bench.rendered(root)?;
        found.extend(text.map(|text| (bench.name, text)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure changes only with its data, never by hand.
    #[test]
    fn the_pages_say_what_the_data_says() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let rendered = rendered(&root, &[]).unwrap();
        let all = tables(false).len() + long().len();
        assert_eq!(rendered.len(), all, "a table has no data");
        for (name, text) in rendered {
            let page = std::fs::read_to_string(page_of(&root, name).unwrap()).unwrap();
            assert!(page.contains(&text), "{name}: run `flowstone-bench evidence --only {name}`");
        }
    }

    #[test]
    fn large_drives_are_of_64_gib() {
        let large = long().into_iter().find(|table| table.name == "large").unwrap();
        let commands: Vec<_> = large.commands().collect();
        assert!(commands.iter().all(|it| it.contains(&"51.2G".to_owned())));
        assert_eq!(commands.len(), 6);
    }

    #[test]
    fn the_same_replay_is_the_same_command_in_all_tables() {
        let tables = tables(false);
        let commands = |name| {
            let table = tables.iter().find(|table| table.name == name).unwrap();
            table.commands().collect::<Vec<_>>()
        };
        let base = &commands("erase-block")[0];
        let of = "flowstone replay --fill 0.8 --format raw --generate zipf:0.99 --size 3.2G";
        assert_eq!(base.join(" "), of);
        assert!(commands("segment").iter().all(|it| it.contains(&"--segment".to_owned())));
    }
}
