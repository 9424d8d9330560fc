//! The pages: generated tables between markers in hand-written text, and pictures.

use std::path::Path;

use anyhow::Result;
use flowstone_experiment::document;

use super::bench::Bench;
use super::data::Data;
use super::pictures::PICTURES;
use super::tables::{long, tables};

/// The tables of each page.
const PAGES: [(&str, &[&str]); 6] = [
    (
        "wear.md",
        &[
            "load",
            "erase-block",
            "load-block",
            "large",
            "unit",
            "trim",
            "spare",
            "fill",
            "fill-loads",
            "images",
            "offset",
            "collector",
        ],
    ),
    (
        "decisions.md",
        &["segment", "reserve", "age", "copies", "records", "dead", "streams", "resort"],
    ),
    ("method.md", &["checks"]),
    ("S1.md", &["sata", "files"]),
    ("S4.md", &["mail"]),
    (
        "S3.md",
        &[
            "postmark",
            "postmark-time",
            "postmark-blocks",
            "postmark-runs",
            "files-runs",
            "trees",
            "trees-full",
            "deletes",
            "sort",
            "sort-four",
            "sort-images",
            "sort-images-time",
            "words",
            "words-four",
        ],
    ),
];

/// Writes all tables and pictures that have data.
pub fn update(folder: &Path, benches: &[Bench]) -> Result<()> {
    for (page, name, text) in rendered(folder, benches)? {
        document::update(&folder.join(page), name, &text)?;
    }
    PICTURES.iter().try_for_each(|it| it.draw(folder, &folder.join(it.file())))
}

/// Returns each table that has data: its page, its name and its text.
pub fn rendered(
    folder: &Path,
    benches: &[Bench],
) -> Result<Vec<(&'static str, &'static str, String)>> {
    let mut found = Vec::new();
    let of_long = long().into_iter().map(|table| (table, "--long "));
    let tables = tables(false).into_iter().map(|table| (table, ""));
    for (table, option) in tables.chain(of_long) {
        let path = folder.join("data").join(format!("{}.json", table.name));
        let page = PAGES.iter().find(|(_, names)| names.contains(&table.name));
        if let (Some((page, _)), true) = (page, path.exists()) {
            let data = Data::read(&path)?;
            let text = format!(
                "{}\n\nAt {}: `flowstone-bench evidence {option}--only {}`, `--list` has the commands.",
                table.render(&data)?.trim_end(),
                data.commit,
                table.name
            );
            found.push((*page, table.name, text));
        }
    }
    for bench in benches {
        let text = bench.rendered(folder)?;
        found.extend(text.map(|text| (bench.page, bench.name, text)));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure changes only with its data, never by hand.
    #[test]
    fn the_pages_say_what_the_data_says() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence");
        let rendered = rendered(&folder, &[]).unwrap();
        let all = tables(false).len() + long().len();
        assert_eq!(rendered.len(), all, "a table has no data or no page");
        for (page, name, text) in rendered {
            let page = std::fs::read_to_string(folder.join(page)).unwrap();
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
