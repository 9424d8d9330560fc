//! Configuration files: one file, or all files of a folder in the order of their names.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use flowstone_block::{Error, Result};
use serde::Deserialize;
use toml::{Spanned, Table};

use super::{Config, DiskConfig, Refusal, table};

/// The tables of a file. Disks are parsed one by one, so that an error in one affects no other.
#[derive(Deserialize)]
struct File {
    #[serde(rename = "group", default)]
    groups: Vec<Spanned<Table>>,
    #[serde(rename = "disk", default)]
    disks: Vec<Spanned<Table>>,
    defaults: Option<Table>,
    #[serde(flatten)]
    daemon: Table,
}

/// A parsed file with its text.
struct Read {
    /// Name of the file in messages.
    name: String,
    text: String,
    file: File,
}

impl Config {
    /// Reads a configuration file, or all `*.toml` of a folder as if they were one; `typed` are
    /// options of [`DaemonConfig`](super::DaemonConfig) that override its keys. Invalid disks are
    /// collected in `refused`; it is an error if no disk is valid.
    pub fn read(path: &Path, typed: &[OsString]) -> Result<Self> {
        let name = format!("configuration {}", path.display());
        let files: Vec<Read> =
            files_of(path, &name)?.iter().map(|path| Read::new(path)).collect::<Result<_>>()?;
        let mut daemon = Table::new();
        let mut defaults = Table::new();
        for Read { name, file, .. } in &files {
            merge(&mut daemon, &file.daemon).map_err(|it| it.of(name))?;
            merge(&mut defaults, file.defaults.as_ref().unwrap_or(&Table::new()))
                .map_err(|it| it.of(name))?;
        }
        let read = table::read(&daemon, typed).and_then(|(daemon, _)| Self::without_disks(daemon));
        let mut config = read.map_err(|it| it.of(&name))?;
        config.source = Some((path.to_owned(), typed.to_vec()));
        for read in &files {
            read.add_groups(&mut config)?;
        }
        files.iter().for_each(|read| read.add_disks(&mut config, &defaults));
        // With a state directory, disks may be added later, or exist from before.
        if !config.disks.is_empty() || config.daemon.state_dir.is_some() {
            return Ok(config);
        }
        let no_disk = || Error::invalid(&name, "it has no [[disk]]", "add one");
        Err(config.refused.into_iter().next().unwrap_or_else(no_disk))
    }
}

/// Returns the configuration files at a path.
fn files_of(path: &Path, name: &str) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let host = |error| Error::invalid(name, error, "check the path");
    let entries = fs::read_dir(path).map_err(host)?;
    let entries = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut files = entries.map_err(host)?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort_unstable();
    Ok(files)
}

/// Adds the keys of another file. A repeated key is an error.
fn merge(all: &mut Table, more: &Table) -> std::result::Result<(), Refusal> {
    let before: Vec<String> = all.keys().cloned().collect();
    for (key, value) in more {
        if before.iter().any(|known| is_same(known, key)) {
            let why = format!("another file has `{key}`, too");
            return Err(Refusal::new(why, "remove one"));
        }
        all.insert(key.clone(), value.clone());
    }
    Ok(())
}

fn is_same(one: &str, other: &str) -> bool {
    one.replace('_', "-") == other.replace('_', "-")
}

/// Returns a table with missing keys taken from `defaults`.
fn with_defaults(table: &Table, defaults: &Table) -> Table {
    let mut all = table.clone();
    for (key, value) in defaults {
        if !table.keys().any(|known| is_same(known, key)) {
            all.insert(key.clone(), value.clone());
        }
    }
    all
}

impl Read {
    fn new(path: &Path) -> Result<Self> {
        let name = format!("configuration {}", path.display());
        let text = fs::read_to_string(path)
            .map_err(|error| Error::invalid(&name, error, "check the path"))?;
        let file = toml::from_str(&text).map_err(|error| {
            let why = one_line(&error.to_string());
            Error::invalid(&name, why, "see `man flowstone.toml` for the keys")
        })?;
        Ok(Self { name, text, file })
    }

    fn line_of(&self, table: &Spanned<Table>) -> usize {
        self.text[..table.span().start].matches('\n').count() + 1
    }

    fn add_groups(&self, config: &mut Config) -> Result<()> {
        for (index, table) in self.file.groups.iter().enumerate() {
            let line = self.line_of(table);
            config.groups.add(table.get_ref()).map_err(|Refusal { why, advice }| {
                let why = format!("group {} (line {line}): {why}", index + 1);
                Error::invalid(&self.name, why, advice)
            })?;
        }
        Ok(())
    }

    fn add_disks(&self, config: &mut Config, defaults: &Table) {
        for (index, table) in self.file.disks.iter().enumerate() {
            let keys = with_defaults(table.get_ref(), defaults);
            let disk = DiskConfig::read(&keys);
            if let Err(Refusal { why, advice }) = disk.and_then(|disk| config.add(disk)) {
                let why = format!("disk {} (line {}): {why}", index + 1, self.line_of(table));
                config.refused.push(Error::invalid(&self.name, why, advice));
                config.refused_tables.push(keys);
            }
        }
    }
}

/// Cuts the parser's drawing of the file, so that the error is one line.
fn one_line(text: &str) -> String {
    let is_drawn = |line: &str| {
        let in_margin = |letter: char| letter == ' ' || letter.is_ascii_digit();
        line.trim_start_matches(in_margin).starts_with('|')
    };
    let lines = text.lines().filter(|line| !is_drawn(line) && !line.trim().is_empty());
    lines.collect::<Vec<_>>().join(", ").replace("TOML parse error at ", "")
}
