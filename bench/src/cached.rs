//! `flowstone-bench cached`: the cost of a cache hit, the cost of a miss, and a comparison of
//! re-reads and cold sequential reads with the host's page cache below qemu-storage-daemon.
//!
//! The servers of a group take turns within a round; reported are the median, and the ratio to the
//! first server of the group.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};
use rustix::fs::{Advice, fadvise, fsync};

use crate::sample::median;
use crate::server::qsd;
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct CachedArgs {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    /// Size of the disks. They have to fit into memory twice.
    #[arg(long, default_value = "512M", value_parser = parse_size)]
    size: u64,
    /// Directory of the image.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
    /// Only groups whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    only: String,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

const RAMP: Duration = Duration::from_millis(200);
const WARM_BYTES: u64 = 128 << 10;
/// A disk of which a cache can hold almost nothing.
const VAST: &str = "null:64G";

/// Servers that are compared.
struct Group {
    name: &'static str,
    servers: &'static [Server],
    loads: &'static [Load],
    /// Blocks have been read before; otherwise the server is new, and the page cache is empty.
    warm: bool,
}

#[derive(Clone, Copy, Debug)]
enum Server {
    /// Flowstone with these options; SIZE stands for the size of the disk, CACHE for half as much
    /// again.
    Flowstone(&'static str, &'static [&'static str]),
    /// Flowstone on the image.
    Image(&'static str, &'static [&'static str]),
    /// qemu-storage-daemon on the image, through the page cache.
    Qsd,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    rw: &'static str,
    block_bytes: u64,
    iodepth: u16,
}

const RANDOM: &[Load] = &[
    Load { rw: "randread", block_bytes: 4096, iodepth: 1 },
    Load { rw: "randread", block_bytes: 4096, iodepth: 32 },
];

const GROUPS: [Group; 4] = [
    Group {
        name: "hits",
        servers: &[
            Server::Flowstone("mem", &["--backend", "mem:SIZE"]),
            Server::Flowstone(
                "mem, all in the cache",
                &["--backend", "mem:SIZE", "--cache", "CACHE"],
            ),
            Server::Flowstone("null", &["--backend", "null:SIZE"]),
        ],
        loads: RANDOM,
        warm: true,
    },
    Group {
        name: "misses",
        servers: &[
            Server::Flowstone("null", &["--backend", VAST]),
            Server::Flowstone(
                "null, cache, refused",
                &["--backend", VAST, "--cache", "64M", "--cache-policy", "multicache"],
            ),
            Server::Flowstone("null, cache, taken in", &["--backend", VAST, "--cache", "64M"]),
        ],
        loads: RANDOM,
        warm: false,
    },
    Group {
        name: "re-reads",
        servers: &[
            Server::Qsd,
            Server::Image("Flowstone, direct, cache", &["--cache", "CACHE"]),
            Server::Image("Flowstone, page cache", &["--direct", "off"]),
        ],
        loads: &[
            Load { rw: "randread", block_bytes: 4096, iodepth: 1 },
            Load { rw: "randread", block_bytes: 4096, iodepth: 32 },
            Load { rw: "read", block_bytes: WARM_BYTES, iodepth: 4 },
        ],
        warm: true,
    },
    Group {
        name: "cold sequential reads",
        servers: &[
            Server::Qsd,
            Server::Image("Flowstone, direct, cache", &["--cache", "CACHE"]),
            Server::Image("Flowstone, direct", &[]),
        ],
        loads: &[
            Load { rw: "read", block_bytes: 4096, iodepth: 1 },
            Load { rw: "read", block_bytes: 64 << 10, iodepth: 1 },
            Load { rw: "read", block_bytes: WARM_BYTES, iodepth: 4 },
        ],
        warm: false,
    },
];

/// Carries out the subcommand.
pub fn cached(args: &CachedArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let bench = Bench {
        args,
        flowstone: args.flowstone.clone().map_or_else(flowstone_binary, Ok)?,
        image: args.dir.join("cached.raw"),
    };
    // Written in full: no read hits a hole.
    std::fs::write(&bench.image, vec![0x5a; usize::try_from(args.size)?])?;
    for group in GROUPS.iter().filter(|group| group.name.contains(&args.only)) {
        bench.group(group)?;
    }
    Ok(std::fs::remove_file(&bench.image)?)
}

struct Bench<'a> {
    args: &'a CachedArgs,
    flowstone: PathBuf,
    image: PathBuf,
}

impl Bench<'_> {
    fn group(&self, group: &Group) -> Result<()> {
        let (servers, loads) = (group.servers, group.loads);
        let mut reports = vec![vec![Vec::new(); loads.len()]; servers.len()];
        for round in 0..self.args.rounds {
            for turn in 0..servers.len() {
                let index = (turn + round) % servers.len();
                for (load, reports) in loads.iter().zip(&mut reports[index]) {
                    let name = servers[index].name();
                    let report = self.measure(servers[index], *load, group.warm).context(name)?;
                    eprintln!(
                        "{} {}/{} {name:<26} {load:?} {:.0}/s",
                        group.name,
                        round + 1,
                        self.args.rounds,
                        report.iops
                    );
                    reports.push(report);
                }
            }
        }
        println!(
            "\n| {} | load | requests/s | p50, us | server CPU, us/request | x the first |\n|---|---|---|---|---|---|",
            group.name
        );
        for (at, load) in loads.iter().enumerate() {
            let first = middle(&reports[0][at], |report| report.iops);
            for (server, reports) in servers.iter().zip(&reports) {
                let of = |value: fn(&LoadReport) -> f64| middle(&reports[at], value);
                let iops = of(|report| report.iops);
                println!(
                    "| {} | {} {} KiB QD{} | {iops:.0} | {:.2} | {:.2} | {:.2} |",
                    server.name(),
                    load.rw,
                    load.block_bytes >> 10,
                    load.iodepth,
                    of(|report| report.latency.p50_us),
                    of(|report| report.server_us_per_io.unwrap_or(f64::NAN)),
                    iops / first,
                );
            }
        }
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "nobody serves the image just now")]
    fn measure(&self, server: Server, load: Load, warm: bool) -> Result<LoadReport> {
        let socket = self.args.dir.join("cached.sock");
        let _ = std::fs::remove_file(&socket);
        if !warm {
            let image = File::open(&self.image)?;
            fsync(&image)?;
            fadvise(&image, 0, None, Advice::DontNeed)?;
        }
        let mut daemon = self.start(server, &socket)?;
        if warm {
            // A disk in memory is written first: otherwise every read accesses the same page of
            // zeroes.
            let in_memory = matches!(server, Server::Flowstone(..));
            let passes = if in_memory { &["write", "read"][..] } else { &["read"] };
            for rw in passes {
                let mut fill = LoadOptions::new(&socket).workload(rw).iodepth(4);
                fill.block_bytes = WARM_BYTES;
                fill.limit = Limit::Ops(self.args.size / WARM_BYTES);
                checked(run(&fill)?)?;
            }
        }
        let mut options = LoadOptions::new(&socket).workload(load.rw).iodepth(load.iodepth);
        options.block_bytes = load.block_bytes;
        options.cpus = vec![self.args.client_cpu];
        options.server_pid = Some(daemon.pid());
        // If the disk is accessed too, its completions need the client's core.
        let on_disk = !warm && !matches!(server, Server::Flowstone(..));
        options.completion = if on_disk { Completion::Eventfd } else { Completion::Poll };
        let runtime = Duration::from_secs_f64(self.args.runtime);
        options.limit = if on_disk {
            Limit::Ops(self.args.size / load.block_bytes)
        } else {
            Limit::Time { ramp: RAMP, runtime }
        };
        let report = checked(run(&options)?)?;
        // QSD has no shutdown to wait for; Flowstone's exit status is checked by tests.
        let _ = daemon.terminate(TERMINATE_TIMEOUT);
        Ok(report)
    }

    fn start(&self, server: Server, socket: &Path) -> Result<Daemon> {
        let (size, cache) = (self.args.size, self.args.size * 3 / 2);
        let fill_in = |word: &&str| {
            word.replace("SIZE", &size.to_string()).replace("CACHE", &cache.to_string())
        };
        let serve = |options: &[&str]| {
            DaemonCommand::new(&self.flowstone)
                .args(["serve", "--socket"])
                .arg(socket)
                .args(options.iter().map(fill_in))
        };
        let command = match server {
            Server::Flowstone(_, options) => serve(options),
            Server::Image(_, options) => serve(options).arg(&self.image),
            Server::Qsd => qsd::serve("raw", &self.image, socket, 1, true),
        };
        Ok(command.cpus(&[self.args.server_cpu]).spawn()?)
    }
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Self::Flowstone(name, _) | Self::Image(name, _) => name,
            Self::Qsd => "QSD, page cache",
        }
    }
}

fn middle(reports: &[LoadReport], value: impl Fn(&LoadReport) -> f64) -> f64 {
    median(reports.iter().map(value).collect()).unwrap_or(f64::NAN)
}

fn checked(report: LoadReport) -> Result<LoadReport> {
    ensure!(report.errors == 0, "{} requests failed", report.errors);
    Ok(report)
}
