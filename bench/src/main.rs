//! `flowstone-bench`: performance of Flowstone in comparison with its peers.
//!
//! Without a subcommand it runs the comparison of `docs/benchmarks.md`: progress on stderr, tables
//! on stdout, and on request JSON and an updated document. The exit status tells whether everything
//! that could be measured was; a peer that is not installed is skipped, with the reason.

mod args;
mod cache;
mod cached;
mod compact;
mod compare;
mod disks;
mod filecache;
mod first_screen;
mod guest;
mod idle;
mod image;
mod log_image;
mod markdown;
mod memory_group;
mod operations;
mod overlay;
mod pair;
mod pdc;
mod place;
mod point;
mod pollers;
mod qcow2_image;
mod qos;
mod raw_file;
mod record;
mod results;
mod run;
mod server;
mod storm;
mod trace;
mod writers;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};

use args::CompareArgs;
use compare::compare;
use image::Images;
use point::Point;
use run::{Base, choose, defaults};

/// Compares Flowstone, qemu-storage-daemon and plain fio in one interleaved run.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    /// Subcommand, instead of the comparison.
    #[command(subcommand)]
    command: Option<Command>,
    /// Options of the comparison.
    #[command(flatten)]
    compare: CompareArgs,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Measure log images against raw images and against their targets.
    Log(Box<log_image::LogArgs>),
    /// Measure qcow2 images beside qemu-storage-daemon.
    Qcow2(qcow2_image::Qcow2Args),
    /// Measure reads through an empty overlay, compared with qemu-storage-daemon and the base
    /// itself. The disks must fit into memory.
    Overlay(overlay::OverlayArgs),
    /// Measure the cost of running many disks: start, metrics, adding and removing.
    Operations(operations::OperationsArgs),
    /// Compare two binaries of Flowstone side by side, to find regressions.
    Pair(pair::PairArgs),
    /// Measure gain and cost of threads shared by the queues of several disks.
    Pollers(pollers::PollersArgs),
    /// Measure eight concurrent writers on several file systems and schedulers of the host.
    Writers(Box<writers::WritersArgs>),
    /// Measure gain and cost of a guest's file cache.
    Guest(guest::GuestArgs),
    /// Measure the effect of a storm of small discards on concurrent writes.
    Storm(storm::StormArgs),
    /// Measure sequential reads of qcow2 images written at random, before and after `flowstone
    /// compact`.
    #[command(mut_args(defaults(&[("rounds", "1"), ("runtime", "3"), ("size", "2G")])))]
    Compact(Base),
    /// Compute hit ratios of cache policies on a trace of block requests.
    Cache(cache::CacheArgs),
    /// Measure the wear of a drive by each format, table by table, for docs/evidence.
    Evidence(flowstone_evidence::EvidenceArgs),
    /// Compute the savings of the guest's file cache on a trace of file uses.
    Filecache(filecache::FilecacheArgs),
    /// Measure cache hits and misses beside qemu-storage-daemon over the page cache. Twice the size
    /// of the disks must fit into memory.
    Cached(cached::CachedArgs),
    /// Measure the gain of keeping journals out of caches.
    Pdc(pdc::PdcArgs),
    /// Measure the accuracy and cost of limits, and the effect of a neighbour on a disk. Some parts
    /// have a time and a size of their own.
    Qos(qos::QosArgs),
    /// Measure the tables of all pages again, command by command, and write the pages.
    Results(results::ResultsArgs),
    /// Measure the cost of a recording of a disk's requests.
    Record(record::RecordArgs),
    /// Measure the speed of servers under the requests of a recorded guest.
    Trace(trace::TraceArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Some(Command::Log(args)) => log_image::log(&args),
        Some(Command::Qcow2(args)) => qcow2_image::qcow2(&args),
        Some(Command::Overlay(args)) => overlay::overlay(&args),
        Some(Command::Cache(args)) => cache::cache(&args),
        Some(Command::Evidence(args)) => flowstone_evidence::evidence(&args, &results::BENCHES),
        Some(Command::Filecache(args)) => filecache::filecache(&args),
        Some(Command::Cached(args)) => cached::cached(&args),
        Some(Command::Pdc(args)) => pdc::pdc(&args),
        Some(Command::Qos(args)) => qos::qos(&args),
        Some(Command::Operations(args)) => operations::operations(&args),
        Some(Command::Pair(args)) => pair::pair(&args),
        Some(Command::Pollers(args)) => pollers::pollers(&args),
        Some(Command::Writers(args)) => writers::writers(&args),
        Some(Command::Guest(args)) => guest::guest(&args),
        Some(Command::Storm(args)) => storm::storm(&args),
        Some(Command::Compact(args)) => compact::compact(&args),
        Some(Command::Results(args)) => results::results(&args),
        Some(Command::Record(args)) => record::record(&args),
        Some(Command::Trace(args)) => trace::trace(&args),
        None => run(&cli.compare),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flowstone-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &CompareArgs) -> Result<()> {
    let points = Point::all();
    let names: Vec<&str> = points.iter().map(|point| &*point.name).chain([idle::NAME]).collect();
    choose(&names, &args.only, |name| name)?;
    let images = Images::new(args)?;
    let (experiment, failures) = compare(args, &images)?;
    args.base.run.publish(markdown::render, &experiment)?;
    ensure!(failures == 0, "{failures} measurements failed; see above");
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for (line, wanted) in [
            ("log --size 4X", ErrorKind::ValueValidation),
            ("log --rounds few", ErrorKind::ValueValidation),
            ("log --settle never", ErrorKind::InvalidValue),
            ("log --rounds 2 steady", ErrorKind::ArgumentConflict),
            ("log steady --passes 2", ErrorKind::UnknownArgument),
            ("log growth --sizes", ErrorKind::InvalidValue),
            ("--device /dev/loop0 --file-size 1G", ErrorKind::ArgumentConflict),
            ("pair", ErrorKind::MissingRequiredArgument),
            ("pollers --rounds few", ErrorKind::ValueValidation),
        ] {
            let words = ["flowstone-bench"].into_iter().chain(line.split(' '));
            let refused = Cli::try_parse_from(words).expect_err(line);
            assert_eq!(refused.kind(), wanted, "{line}");
        }
    }

    #[test]
    fn what_names_nothing_is_refused_before_anything_is_made() {
        let args = Cli::parse_from(["flowstone-bench", "--only", "nothing"]).compare;
        let refused = run(&args).unwrap_err().to_string();
        assert!(refused.contains("there are null-randread-4k-qd1, "), "{refused}");
        for line in ["log --only nothing", "log steady --only nothing"] {
            let words = ["flowstone-bench"].into_iter().chain(line.split(' '));
            let Some(Command::Log(args)) = Cli::parse_from(words).command else {
                panic!("{line} is a log command");
            };
            let refused = log_image::log(&args).unwrap_err();
            assert!(refused.to_string().contains("matches [\"nothing\"]"), "{refused}");
        }
    }
}
