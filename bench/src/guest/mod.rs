//! `flowstone-bench guest`: benefits and costs of a guest's file cache, in front of a folder of
//! this machine or of a FUSE server behind a simulated link.

pub mod again;
pub mod postmark;
pub mod same_memory;
pub mod speed;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use flowstone_experiment::Experiment;
use flowstone_experiment::command::json;
use flowstone_experiment::host::{Host, require_commit};
use flowstone_testkit::process::{Ready, TempDir};
use flowstone_testkit::{Daemon, DaemonCommand, HANG, wait_until};
use serde_json::Value;

use crate::place::stop;

/// Round trip to a slow source, and the bandwidth of its link in bytes per second.
const ROUND_TRIP: Duration = Duration::from_millis(1);
const BANDWIDTH: u64 = 12_500_000;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct GuestArgs {
    /// The flowstone-guest binary [default: beside this program].
    #[arg(long, global = true)]
    guest: Option<PathBuf>,
    /// Rounds; each measures every point once.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    /// Write every figure of every round as JSON.
    #[arg(long, global = true, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The measurement.
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Throughput as the cached part of files grows (Figs. 4 and 5 of the MultiCache paper).
    Postmark,
    /// Bytes read from the source, with the same memory as the page cache has without the file
    /// cache.
    SameMemory,
    /// Reads of a second mount that has the copies and the history of the first one.
    Again,
    /// Speed of opens, reads, writes and name lookups compared with direct access to the files, and
    /// memory.
    Speed(speed::SpeedArgs),
}

/// Measures, and prints a table.
pub fn guest(args: &GuestArgs) -> Result<()> {
    let beside = std::env::current_exe()?.with_file_name("flowstone-guest");
    let program = args.guest.clone().unwrap_or(beside);
    ensure!(program.exists(), "{} is not there; build it or give --guest", program.display());
    args.json.iter().try_for_each(|path| require_commit(path))?;
    let host = Host::inspect(Vec::new(), &std::env::temp_dir());
    let mut experiment = Experiment::new(&format!("{:?}", args.what), host);
    let to = &mut experiment;
    let text = match &args.what {
        What::Postmark => {
            postmark::postmark(&program, args.rounds, to)?;
            postmark::render(to)
        }
        What::SameMemory => {
            same_memory::same_memory(&program, args.rounds, to)?;
            same_memory::render(to)
        }
        What::Again => {
            again::again(&program, args.rounds, to)?;
            again::render(to)
        }
        What::Speed(options) => {
            speed::speed(options, &program, args.rounds, to)?;
            speed::render(to)
        }
    };
    println!("{}", experiment.page(&text));
    args.json.as_ref().map_or(Ok(()), |path| experiment.write(path))
}

/// A folder with the subfolders of a measurement.
struct Places(TempDir);

impl Places {
    fn new(names: &[&str]) -> Result<Self> {
        let places = Self(TempDir::with_prefix("flowstone-bench-")?);
        for name in names {
            fs::create_dir(places.at(name))?;
        }
        Ok(places)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// A mount of the file cache.
struct Mounted {
    daemon: Daemon,
    program: PathBuf,
    at: PathBuf,
}

impl Mounted {
    /// Serves `source` at `at` with further options, started by `launcher` (a command that runs its
    /// arguments) unless that is empty.
    fn start(
        program: &Path,
        launcher: &[&str],
        source: &Path,
        at: &Path,
        options: &[&str],
    ) -> Result<Self> {
        let command = match launcher {
            [] => DaemonCommand::new(program),
            [first, rest @ ..] => DaemonCommand::new(first).args(rest).arg(program),
        };
        let command = command.arg("cache").arg("--source").arg(source).arg("--mount").arg(at);
        let mut daemon = command.args(options).ready(Ready::Now).spawn()?;
        daemon.wait_stdout("serving", HANG)?;
        Ok(Self { daemon, program: program.to_owned(), at: at.to_owned() })
    }

    fn stats(&self) -> Result<Value> {
        json(Command::new(&self.program).args(["stats", "--json"]).arg(&self.at))
    }

    fn count(&self, name: &str) -> Result<u64> {
        let stats = self.stats()?;
        stats[name].as_u64().with_context(|| format!("{name} in {stats}"))
    }

    /// Reads files repeatedly until there are `count` copies. A file first seen less than two
    /// seconds ago is not copied yet.
    fn copy(&self, names: &[String], count: u64) {
        wait_until("the files are copied", || {
            for name in names {
                let _ = fs::read(self.at.join(name));
            }
            thread::sleep(Duration::from_millis(100));
            self.count("cached_files").is_ok_and(|copied| copied >= count)
        });
    }

    fn end(mut self) -> Result<()> {
        stop(&mut self.daemon)
    }
}
