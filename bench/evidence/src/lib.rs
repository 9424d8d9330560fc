//! `flowstone-bench evidence`: the effect of each image format on a drive, cell by cell, as
//! reproducible commands.
//!
//! ```text
//!   tables ──► flowstone replay, two at a time ──► docs/results/TABLE.json
//!                                                           └──► pages and pictures
//! ```

mod bench;
mod checks;
mod data;
mod guests;
mod pages;
mod phases;
mod pictures;
mod record;
mod table;
mod tables;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::command::json;
use flowstone_experiment::host::{Host, require_commit};
use serde_json::Value;

pub use self::bench::{Bench, Plot};
use self::data::{Cell, Data};
pub use self::pages::page_of;
use self::table::Table;
use self::tables::{long, tables};

/// Replays run in parallel; of large drives, whose models take much memory, one at a time.
const AT_ONCE: usize = 2;
/// Folder of the results.
const RESULTS: &str = "docs/results";
const TEXT: &str = "there is no docs/results here; run this in a clone";

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
    /// the tables that replay them; once is enough (42 min)
    #[arg(long, conflicts_with_all = ["quick", "flowstone"])]
    record: bool,
    /// Add the tables of drives of 64 GiB, and of two loads by erase block; replays run one at a
    /// time, for their memory (about an hour and a half in all)
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

/// Runs the subcommand; `benches` are the tables of the others.
pub fn evidence(args: &EvidenceArgs, benches: &[Bench]) -> Result<()> {
    if args.record {
        return if args.list {
            record::list();
            Ok(())
        } else {
            record::record(args.only.as_deref())
        };
    }
    if args.render {
        return render(benches);
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
        return Ok(());
    }
    let flowstone = match &args.flowstone {
        Some(path) => path.clone(),
        None => std::env::current_exe()?.with_file_name("flowstone"),
    };
    let folder = Path::new(if args.quick { "target/evidence" } else { RESULTS });
    ensure!(args.quick || folder.exists(), "{TEXT}");
    require_commit(folder)?;
    std::fs::create_dir_all(folder)?;
    let wanted: Vec<_> = wanted.into_iter().filter(is_recorded).collect();
    ensure!(args.only.is_none() || !wanted.is_empty(), "nothing is left to run");
    // Before the replays, which may take long: the commit of what they run.
    let host = Host::inspect(Vec::new(), folder);
    let (reports, failures) = run_all(&flowstone, &wanted, if args.long { 1 } else { AT_ONCE })?;
    let is_whole = |table: &&Table| table.commands().all(|it| reports.contains_key(&it));
    for table in wanted.iter().filter(is_whole) {
        let cell = |command: Vec<String>| Cell { report: table.kept(&reports[&command]), command };
        let cells = table.commands().map(cell).collect();
        let data = Data { commit: host.commit.clone(), host: Some(host.clone()), cells };
        data.write(&folder.join(format!("{}.json", table.name)))?;
        println!("### {}\n\n{}", table.title, table.render(&data)?);
    }
    if !args.quick {
        pages::update(Path::new("."), benches)?;
    }
    ensure!(failures.is_empty(), "tables are left as they were: {}", failures.join("; "));
    Ok(())
}

/// Writes all pages from the results.
pub fn render(benches: &[Bench]) -> Result<()> {
    ensure!(Path::new(RESULTS).exists(), "{TEXT}");
    pages::update(Path::new("."), benches)
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

/// Reports by command.
type Reports = HashMap<Vec<String>, Value>;

/// Runs each command once, even if several tables have it. Returns the reports, and what failed.
fn run_all(flowstone: &Path, tables: &[Table], at_once: usize) -> Result<(Reports, Vec<String>)> {
    let mut commands: Vec<_> = tables.iter().flat_map(Table::commands).collect();
    commands.sort();
    commands.dedup();
    // Log images take longest.
    commands.sort_by_key(|command| !command.iter().any(|word| word == "log"));
    let (next, done) = (AtomicUsize::new(0), Mutex::new((Reports::new(), Vec::new())));
    let work = || {
        while let Some(command) = commands.get(next.fetch_add(1, Ordering::Relaxed)) {
            let report = json(Command::new(flowstone).args(&command[1..]).arg("--json"));
            let mut done = done.lock().expect("no thread panics here");
            let (reports, failures) = &mut *done;
            let number = reports.len() + failures.len() + 1;
            eprintln!("{number} of {}: {}", commands.len(), command.join(" "));
            match report {
                Ok(report) => drop(reports.insert(command.clone(), report)),
                Err(error) => failures.push(format!("{error:#}")),
            }
        }
    };
    thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    Ok(done.into_inner()?)
}
