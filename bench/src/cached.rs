//! `flowstone-bench cached`: the cost of a cache hit, the cost of a miss, and a comparison of
//! re-reads and cold sequential reads with the host's page cache below qemu-storage-daemon.
//!
//! The servers of a group take turns within a round; reported are the medians, and the ratio to the
//! first server of the group.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, P50_US, figures, table};
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::load::{Completion, LoadOptions};

use crate::place::{PASS_BYTES, remove, serve, stop_peer, timed, whole};
use crate::point::selected;
use crate::raw_file::drop_pages;
use crate::run::{Base, defaults};
use crate::server::qsd;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_args(defaults(&[("size", "512M")])))]
pub struct CachedArgs {
    /// Only groups whose name contains this; may be given several times.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    #[command(flatten)]
    base: Base,
}

/// A disk of which a cache can hold almost nothing.
const VAST: &str = "null:64G";

/// Servers that are compared.
struct Group {
    name: &'static str,
    servers: &'static [Server],
    loads: &'static [Load],
    before: Before,
}

/// The server's work before it is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// It is new, and the page cache is empty.
    Nothing,
    /// All blocks have been read, and are held if there is room.
    Read,
    /// The same, then as many at random as the disk has: a small cache is full, and its memory has
    /// been used again and again.
    Churned,
}

impl Before {
    /// Returns the loads, by access pattern and request size.
    const fn loads(self) -> &'static [(&'static str, u64)] {
        match self {
            Self::Nothing => &[],
            Self::Read => &[("read", PASS_BYTES)],
            Self::Churned => &[("read", PASS_BYTES), ("randread", 4096)],
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Server {
    /// Flowstone with these options; SIZE stands for the size of the disk, CACHE for half as much
    /// again, QUARTER for a quarter of it.
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

const GROUPS: [Group; 5] = [
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
        before: Before::Read,
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
        before: Before::Nothing,
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
            Load { rw: "read", block_bytes: PASS_BYTES, iodepth: 4 },
        ],
        before: Before::Read,
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
            Load { rw: "read", block_bytes: PASS_BYTES, iodepth: 4 },
        ],
        before: Before::Nothing,
    },
    Group {
        name: "sequential reads, the cache full",
        servers: &[
            Server::Image("Flowstone, direct", &[]),
            Server::Image("Flowstone, direct, cache", &["--cache", "QUARTER"]),
        ],
        loads: &[
            Load { rw: "read", block_bytes: 4096, iodepth: 1 },
            Load { rw: "read", block_bytes: PASS_BYTES, iodepth: 4 },
        ],
        before: Before::Churned,
    },
];

/// Carries out the subcommand.
pub fn cached(args: &CachedArgs) -> Result<()> {
    let mut experiment = args.base.experiment("cached")?;
    let bench = Bench {
        args,
        flowstone: args.base.place.program()?,
        image: args.base.run.dir.join("cached.raw"),
    };
    // Written in full: no read hits a hole.
    std::fs::write(&bench.image, vec![0x5a; usize::try_from(args.base.size)?])?;
    for group in GROUPS.iter().filter(|group| selected(group.name, &args.only)) {
        let points: Vec<_> = group.loads.iter().map(|load| (group.point(*load), *load)).collect();
        let servers: Vec<_> = group.servers.iter().map(|it| (it.name(), *it)).collect();
        experiment.run(args.base.run.rounds, &points, &servers, |load, server| {
            bench.measure(*server, *load, group.before)
        })?;
    }
    experiment.describe(&format!(
        "Disks of {} MiB, server and client on a core each, servers of a group in turn, {} s a \
         round; ratios are to the first server of the group.",
        args.base.size >> 20,
        args.base.runtime
    ));
    args.base.run.publish(render, &experiment)?;
    remove(&bench.image)
}

/// Renders the tables.
pub fn render(experiment: &Experiment) -> String {
    let measured = experiment.points();
    let groups = GROUPS.iter().filter(|group| {
        let first = group.loads.first().map(|load| group.point(*load));
        first.is_some_and(|point| measured.contains(&&*point))
    });
    groups.map(|group| group.table(experiment)).collect::<Vec<_>>().join("\n")
}

impl Group {
    fn point(&self, load: Load) -> String {
        format!("{}, {}", self.name, load.name())
    }

    fn table(&self, experiment: &Experiment) -> String {
        let mut rows = Vec::new();
        for load in self.loads {
            let point = self.point(*load);
            let first = experiment.at(&point, self.servers[0].name());
            rows.extend(self.servers.iter().map(|server| {
                let own = experiment.at(&point, server.name());
                vec![
                    server.name().to_owned(),
                    load.name(),
                    own.count(IOPS),
                    own.cell(P50_US, 2),
                    own.spread(CPU_US, 2),
                    own.ratio(first, IOPS),
                ]
            }));
        }
        let titles = "load | requests/s | p50, us | server CPU, us/request | x the first";
        table(&format!("{} | {titles}", self.name), rows)
    }
}

struct Bench<'a> {
    args: &'a CachedArgs,
    flowstone: PathBuf,
    image: PathBuf,
}

impl Bench<'_> {
    fn measure(&self, server: Server, load: Load, before: Before) -> Result<Figures> {
        let (args, socket) = (self.args, self.args.base.run.dir.join("cached.sock"));
        if before == Before::Nothing {
            drop_pages(&self.image)?;
        }
        let in_memory = matches!(server, Server::Flowstone(..));
        // A disk in memory is written first: otherwise every read accesses the same page of zeroes.
        let write = in_memory && before != Before::Nothing;
        let write = if write { &[("write", PASS_BYTES)][..] } else { &[] };
        let loads = write.iter().chain(before.loads()).map(|(rw, bytes)| {
            let load = LoadOptions::new(&socket).workload(rw).iodepth(4);
            whole(load, *bytes, args.base.size)
        });
        let mut options = args.base.place.load(&socket, load.rw, load.iodepth);
        options.block_bytes = load.block_bytes;
        // If the disk is accessed too, its completions need the client's core.
        if before != Before::Read && !in_memory {
            options.completion = Completion::Eventfd;
        }
        options = match before {
            Before::Nothing if !in_memory => whole(options, load.block_bytes, args.base.size),
            _ => LoadOptions { limit: timed(args.base.runtime), ..options },
        };
        let loads: Vec<_> = loads.chain([options]).collect();
        // Flowstone's exit status is checked by tests.
        Ok(figures(&args.base.place.measure(self.command(server, &socket), &loads, stop_peer)?))
    }

    fn command(&self, server: Server, socket: &Path) -> DaemonCommand {
        let (size, cache) = (self.args.base.size, self.args.base.size * 3 / 2);
        let fill_in = |word: &&str| {
            let word = word.replace("SIZE", &size.to_string());
            let word = word.replace("CACHE", &cache.to_string());
            word.replace("QUARTER", &(size / 4).to_string())
        };
        let serve =
            |options: &[&str]| serve(&self.flowstone, socket).args(options.iter().map(fill_in));
        match server {
            Server::Flowstone(_, options) => serve(options),
            Server::Image(_, options) => serve(options).arg(&self.image),
            Server::Qsd => qsd::serve("raw", &self.image, socket, 1, true),
        }
    }
}

impl Load {
    fn name(self) -> String {
        format!("{} {} KiB QD{}", self.rw, self.block_bytes >> 10, self.iodepth)
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
