//! `flowstone-bench evidence`: the effect of each image format on a drive, cell by cell, as
//! reproducible commands.
//!
//! ```text
//!   tables ──► flowstone replay, two at a time ──► docs/evidence/data/TABLE.json
//!                                                           └──► pages and pictures
//! ```

mod benches;
mod data;
mod guests;
mod pages;
mod phases;
mod record;
mod table;
mod tables;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use self::data::{Cell, Data};
use self::table::Table;
use self::tables::{long, tables};

/// Replays run in parallel; of large drives, whose models take much memory, one at a time.
const AT_ONCE: usize = 2;
/// Folder of the pages.
const FOLDER: &str = "docs/evidence";

/// Options.
#[derive(Clone, Debug, Args)]
pub struct EvidenceArgs {
    /// Print the tables and their commands, and run nothing
    #[arg(long)]
    list: bool,
    /// Run this table only
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Boot Linux guests and record the requests to their disks into target/evidence/traces, for
    /// the tables that replay them; once is enough (32 min)
    #[arg(long, conflicts_with_all = ["quick", "flowstone"])]
    record: bool,
    /// Add the tables of drives of 64 GiB; replays run one at a time, for their memory (45 min in
    /// all)
    #[arg(long, conflicts_with_all = ["record", "quick"])]
    long: bool,
    /// Write the pages from the data and run nothing: after a table of another command was
    /// measured
    #[arg(long, conflicts_with_all = ["record", "quick", "list"])]
    render: bool,
    /// Use disks of 256 MiB; the figures go to target/evidence, not to the pages
    #[arg(long)]
    quick: bool,
    /// The flowstone binary [default: beside this program]
    #[arg(long, value_name = "PATH")]
    flowstone: Option<PathBuf>,
}

/// Runs the subcommand.
pub fn evidence(args: &EvidenceArgs) -> Result<()> {
    if args.record {
        return if args.list {
            record::list();
            Ok(())
        } else {
            record::record(args.only.as_deref())
        };
    }
    if args.render {
        return pages::update(Path::new(FOLDER));
    }
    let is_wanted = |table: &Table| args.only.as_ref().is_none_or(|name| table.name == *name);
    let mut all = tables(args.quick);
    if args.long {
        all.extend(long());
    }
    let names = all.iter().map(|table| table.name).collect::<Vec<_>>().join(", ");
    let wanted: Vec<_> = all.into_iter().filter(is_wanted).collect();
    ensure!(!wanted.is_empty(), "there is no such table; there are {names}");
    if args.list {
        for table in &wanted {
            println!("{}: {}", table.name, table.title);
            table.commands().for_each(|command| println!("    {}", command.join(" ")));
        }
        if args.only.is_none() {
            benches::list();
        }
        return Ok(());
    }
    let flowstone = match &args.flowstone {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("flowstone"),
    };
    let folder = if args.quick { "target/evidence" } else { FOLDER };
    let folder = Path::new(folder);
    std::fs::create_dir_all(folder.join("data"))?;
    let wanted: Vec<_> = wanted.into_iter().filter(is_recorded).collect();
    // Before the replays, which may take long: the commit of what they run.
    let commit = commit();
    let reports = run_all(&flowstone, &wanted, if args.long { 1 } else { AT_ONCE })?;
    for table in &wanted {
        let cell = |command: Vec<String>| Cell { report: table.kept(&reports[&command]), command };
        let cells = table.commands().map(cell).collect();
        let data = Data { commit: commit.clone(), cells };
        data.write(&folder.join("data").join(format!("{}.json", table.name)))?;
        println!("### {}\n\n{}", table.title, table.render(&data)?);
    }
    if args.quick { Ok(()) } else { pages::update(folder) }
}

/// Returns whether the traces replayed by a table exist; if not, its earlier results are kept.
fn is_recorded(table: &Table) -> bool {
    let missing = table.traces().find(|trace| !Path::new(trace).exists());
    if let Some(trace) = &missing {
        let how = "flowstone-bench evidence --record makes it";
        eprintln!("{} is left out: there is no {trace} ({how})", table.name);
    }
    missing.is_none()
}

/// Runs each command once, even if several tables have it.
fn run_all(
    flowstone: &Path,
    tables: &[Table],
    at_once: usize,
) -> Result<HashMap<Vec<String>, Value>> {
    let mut commands: Vec<_> = tables.iter().flat_map(Table::commands).collect();
    commands.sort();
    commands.dedup();
    // Log images take longest.
    commands.sort_by_key(|command| !command.iter().any(|word| word == "log"));
    // Replays that measure time run alone.
    let (alone, together): (Vec<_>, Vec<_>) =
        commands.into_iter().partition(|command| command.iter().any(|word| word == "--onto"));
    let mut reports = run_some(flowstone, &together, at_once)?;
    reports.extend(run_some(flowstone, &alone, 1)?);
    // It may not exist.
    let _ = std::fs::remove_file(guests::ONTO);
    Ok(reports)
}

fn run_some(
    flowstone: &Path,
    commands: &[Vec<String>],
    at_once: usize,
) -> Result<HashMap<Vec<String>, Value>> {
    let (next, reports) = (AtomicUsize::new(0), Mutex::new(HashMap::new()));
    let work = || -> Result<()> {
        while let Some(command) = commands.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The other thread stops, too, if one fails.
            let report = run(flowstone, command).inspect_err(|_| {
                next.store(commands.len(), Ordering::Relaxed);
            })?;
            let mut reports = reports.lock().expect("no thread panics here");
            reports.insert(command.clone(), report);
            eprintln!("{} of {}: {}", reports.len(), commands.len(), command.join(" "));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics here"))
    })?;
    Ok(reports.into_inner()?)
}

fn run(flowstone: &Path, command: &[String]) -> Result<Value> {
    let output = Command::new(flowstone).args(&command[1..]).arg("--json").output();
    let output = output.with_context(|| format!("run {}", flowstone.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", command.join(" "));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Returns the commit of the tree that this is run in.
fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "--short", "HEAD"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.unwrap_or_default()
}
