//! `flowstone-bench qos`: accuracy of limits, the effect of a greedy neighbour on a disk, and the
//! overhead of limits that are not reached.
//!
//! The compared cases take turns within a round; reported is the median of the rounds.

mod vms;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use flowstone_testkit::process::{Ready, TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};
use tempfile::{TempDir, tempdir_in};

use crate::document;
use crate::sample::{interval, median};
use crate::size::parse_size;

/// Options.
#[derive(Clone, Debug, Args)]
pub struct QosArgs {
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measured seconds, where nothing else is said.
    #[arg(long, default_value_t = 1.0)]
    runtime: f64,
    /// Size of the disks that have neighbours.
    #[arg(long, default_value = "1G", value_parser = parse_size)]
    size: u64,
    /// Directory of their images, on the file system to be measured.
    #[arg(long, default_value = "target/bench-data")]
    dir: PathBuf,
    /// Only parts whose name contains this: limits, neighbours, vms, overhead.
    #[arg(long, default_value = "")]
    only: String,
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
    flowstone: Option<PathBuf>,
    /// A binary from before limits and weights, to compare with.
    #[arg(long)]
    before: Option<PathBuf>,
    /// Rewrite the tables between the markers `qos` of this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    server_cpu: usize,
    /// CPU of the clients.
    #[arg(long, default_value_t = 1)]
    client_cpu: usize,
}

const RAMP: Duration = Duration::from_millis(250);
const FILL_BYTES: u64 = 256 << 10;
/// Factor of rounds: differences of a percent need more.
const OVERHEAD_ROUNDS: usize = 3;
const TMPFS: &str = "/dev/shm";
/// Queue depth of the greedy neighbour.
const HOG_DEPTH: u16 = 128;

/// Carries out the subcommand.
pub fn qos(args: &QosArgs) -> Result<()> {
    std::fs::create_dir_all(&args.dir)?;
    let program = args.flowstone.clone().map_or_else(flowstone_binary, Ok)?;
    let bench = Bench { args, program };
    let parts: [(&str, Part); 4] = [
        ("limits", |bench| bench.limits()),
        ("neighbours", |bench| bench.neighbours()),
        ("vms", |bench| bench.vms()),
        ("overhead", |bench| bench.overhead()),
    ];
    let mut text = String::new();
    for (name, part) in parts.iter().filter(|(name, _)| name.contains(&args.only)) {
        let table = part(&bench).with_context(|| format!("part {name}"))?;
        println!("{table}");
        text += &table;
    }
    ensure!(!text.is_empty(), "no part matches {:?}", args.only);
    match &args.markdown {
        Some(path) => document::update(path, "qos", &text),
        None => Ok(()),
    }
}

/// Measures one part, and returns its table.
type Part = fn(&Bench<'_>) -> Result<String>;

struct Bench<'a> {
    args: &'a QosArgs,
    program: PathBuf,
}

/// A daemon and the folder of its sockets: `NAME.sock` for each disk.
struct Served {
    daemon: Daemon,
    dir: TempDir,
}

impl Served {
    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.sock"))
    }

    fn end(mut self) -> Result<()> {
        let status = self.daemon.terminate(TERMINATE_TIMEOUT)?;
        ensure!(status.success(), "flowstone ended with {status}");
        Ok(())
    }
}

/// Requests per second and the 99th percentile of their latency.
#[derive(Default)]
struct Figures {
    iops: Vec<f64>,
    p99_us: Vec<f64>,
}

impl Figures {
    fn push(&mut self, report: &LoadReport) {
        self.iops.push(report.iops);
        self.p99_us.push(report.latency.p99_us);
    }

    fn iops(&self) -> f64 {
        median(self.iops.clone()).unwrap_or(f64::NAN)
    }

    fn p99_us(&self) -> f64 {
        median(self.p99_us.clone()).unwrap_or(f64::NAN)
    }
}

impl Bench<'_> {
    fn serve(&self, program: &Path, dir: TempDir, disks: &[(&str, String)]) -> Result<Served> {
        let mut text = String::new();
        for (name, keys) in disks {
            let socket = dir.path().join(format!("{name}.sock"));
            text += &format!("[[disk]]\nname = {name:?}\nsocket = {socket:?}\n{keys}\n");
        }
        let config = dir.path().join("disks.toml");
        std::fs::write(&config, text)?;
        let command = DaemonCommand::new(program)
            .args(["serve", "--config"])
            .arg(config)
            .cpus(&[self.args.server_cpu])
            .ready(Ready::Listening(disks.len()));
        Ok(Served { daemon: command.spawn()?, dir })
    }

    fn load(&self, socket: &Path, rw: &str, depth: u16, queues: usize) -> LoadOptions {
        let mut options = LoadOptions::new(socket).workload(rw).iodepth(depth);
        options.client = options.client.queues(queues);
        (options.threads, options.cpus) = (1, vec![self.args.client_cpu]);
        options.completion = Completion::Eventfd;
        let runtime = Duration::from_secs_f64(self.args.runtime);
        options.limit = Limit::Time { ramp: RAMP, runtime };
        options
    }

    /// Measures the largest deviation of the rate from the limit, over a second and over 100 ms.
    fn limits(&self) -> Result<String> {
        let mut table =
            "| limit, 4 KiB random writes, image on tmpfs | wanted/s | 1 s: median | worst | \
                         100 ms: median | worst |\n|---|---|---|---|---|---|\n"
                .to_owned();
        for (limit, queues, depth, wanted) in [
            ("iops=500", 1, 32, 500.0),
            ("iops=5000", 1, 1, 5000.0),
            ("iops=20000", 1, 32, 20_000.0),
            ("iops=20000", 4, 32, 20_000.0),
            ("bw=64M", 1, 32, 16_384.0),
        ] {
            let dir = tempdir_in(TMPFS)?;
            let image = dir.path().join("disk.raw");
            std::fs::File::create(&image)?.set_len(256 << 20)?;
            let keys = format!("image = {image:?}\nlimit = \"{limit}\"");
            let served = self.serve(&self.program, dir, &[("disk", keys)])?;
            let mut cells = Vec::new();
            for (window_ms, count) in [(1000, self.args.rounds), (100, 4 * self.args.rounds)] {
                let mut off = Vec::new();
                for _ in 0..count {
                    let mut load = self.load(&served.socket("disk"), "randwrite", depth, queues);
                    let runtime = Duration::from_millis(window_ms);
                    load.limit = Limit::Time { ramp: RAMP, runtime };
                    off.push(checked(run(&load)?)?.iops / wanted - 1.0);
                }
                let worst = off.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
                let middle = median(off).unwrap_or(f64::NAN);
                cells.push(format!("{:+.2} %", 100.0 * middle));
                cells.push(format!("{:+.2} %", 100.0 * worst.unwrap_or(f64::NAN)));
            }
            let shape = format!("`{limit}`, {queues} x QD{depth}");
            table += &format!("| {shape} | {wanted:.0} | {} |\n", cells.join(" | "));
            eprintln!("{shape}: {cells:?}");
            served.end()?;
        }
        Ok(table + "\n")
    }

    /// Measures a disk at depth one beside one at depth 128, on one device.
    fn neighbours(&self) -> Result<String> {
        let cases = self.cases();
        let mut table = "| 4 KiB, raw images on ext4 | hog, QD128 | of alone | neighbour, QD1 | p99, us | of alone |\n\
                         |---|---|---|---|---|---|\n"
            .to_owned();
        for rw in ["randread", "randwrite"] {
            let mut figures: Vec<[Figures; 2]> = cases.iter().map(|_| Default::default()).collect();
            for round in 0..self.args.rounds {
                for turn in 0..cases.len() {
                    let index = (turn + round) % cases.len();
                    self.beside(&cases[index], rw, &mut figures[index])?;
                }
            }
            let alone = [figures[0][0].iops(), figures[0][1].p99_us()];
            for (case, [hog, modest]) in cases.iter().zip(&figures) {
                table += &format!(
                    "| {rw}, {} | {:.0} | {:.2} | {:.0} | {:.0} | {:.2} |\n",
                    case.name,
                    hog.iops(),
                    hog.iops() / alone[0],
                    modest.iops(),
                    modest.p99_us(),
                    modest.p99_us() / alone[1],
                );
            }
        }
        for name in ["hog", "modest"] {
            std::fs::remove_file(self.image(name)?)?;
        }
        Ok(table + "\n")
    }

    fn cases(&self) -> Vec<Case> {
        let case = |name, program: &PathBuf, together, hog_keys, modest_keys| {
            let program = program.clone();
            Case { name, program, together, hog_keys, modest_keys }
        };
        let ours = &self.program;
        let mut cases = vec![case("alone", ours, false, "", "")];
        if let Some(before) = &self.args.before {
            cases.push(case("together, without weights", before, true, "", ""));
        }
        cases.push(case("together, equal weights", ours, true, "", ""));
        cases.push(case("together, weights 1 : 100", ours, true, "weight = 1", "weight = 100"));
        cases.push(case("together, hog `iops=5000`", ours, true, "limit = \"iops=5000\"", ""));
        cases
    }

    fn beside(&self, case: &Case, rw: &str, figures: &mut [Figures; 2]) -> Result<()> {
        let keys = |name: &str, more: &str| -> Result<String> {
            let image = std::path::absolute(self.image(name)?)?;
            Ok(format!("image = {image:?}\ndirect = \"on\"\n{more}"))
        };
        let dir = tempdir_in(&self.args.dir)?;
        let disks =
            [("hog", keys("hog", case.hog_keys)?), ("modest", keys("modest", case.modest_keys)?)];
        let served = self.serve(&case.program, dir, &disks)?;
        let hog = self.load(&served.socket("hog"), rw, HOG_DEPTH, 1);
        let modest = self.load(&served.socket("modest"), rw, 1, 1);
        let reports = if case.together {
            std::thread::scope(|scope| {
                let hog = scope.spawn(|| run(&hog));
                let modest = run(&modest);
                (hog.join().expect("a load returns its errors"), modest)
            })
        } else {
            (run(&hog), run(&modest))
        };
        let (hog, modest) = (checked(reports.0?)?, checked(reports.1?)?);
        eprintln!(
            "{rw} {:<28} hog {:.0}/s, neighbour {:.0}/s p99 {:.0} us",
            case.name, hog.iops, modest.iops, modest.latency.p99_us
        );
        figures[0].push(&hog);
        figures[1].push(&modest);
        served.end()
    }

    /// Returns an image that has been written in full.
    fn image(&self, name: &str) -> Result<PathBuf> {
        let path = self.args.dir.join(format!("qos-{name}.raw"));
        if path.metadata().is_ok_and(|file| file.len() == self.args.size) {
            return Ok(path);
        }
        let chunk = vec![0x5a; FILL_BYTES as usize];
        let mut file = std::fs::File::create(&path)?;
        for _ in 0..self.args.size / FILL_BYTES {
            std::io::Write::write_all(&mut file, &chunk)?;
        }
        Ok(path)
    }

    /// Measures unlimited requests with and without the stage of limits.
    fn overhead(&self) -> Result<String> {
        let never = "limit = \"iops=1000000000,bw=1024T\"";
        let mut servers = vec![("no limit", &self.program, "")];
        servers.push(("a limit that is not reached", &self.program, never));
        if let Some(before) = &self.args.before {
            servers.insert(0, ("without the stage", before, ""));
        }
        let mut table =
            "| `null` backend, 4 KiB random reads | requests/s | of the first, by rounds |\n|---|---|---|\n"
                .to_owned();
        for depth in [1, 32] {
            let mut rates: Vec<Vec<f64>> = servers.iter().map(|_| Vec::new()).collect();
            for round in 0..OVERHEAD_ROUNDS * self.args.rounds {
                for turn in 0..servers.len() {
                    let index = (turn + round) % servers.len();
                    let (name, program, keys) = servers[index];
                    let keys = format!("backend = \"null:8G\"\n{keys}");
                    let dir = tempdir_in(&self.args.dir)?;
                    let served = self.serve(program, dir, &[("disk", keys)])?;
                    let mut load = self.load(&served.socket("disk"), "randread", depth, 1);
                    load.completion = Completion::Poll;
                    let runtime = Duration::from_secs_f64(self.args.runtime / 2.0);
                    load.limit = Limit::Time { ramp: RAMP / 2, runtime };
                    let report = checked(run(&load)?)?;
                    eprintln!("QD{depth} {name:<28} {:.0}/s", report.iops);
                    rates[index].push(report.iops);
                    served.end()?;
                }
            }
            for ((name, ..), own) in servers.iter().zip(&rates) {
                let ratios = own.iter().zip(&rates[0]).map(|(own, first)| own / first);
                let middle = median(own.clone()).unwrap_or(f64::NAN);
                let ratio = interval(ratios.collect());
                table += &format!("| QD{depth}, {name} | {middle:.0} | {ratio} |\n");
            }
        }
        Ok(table + "\n")
    }
}

/// A case: which disks run together, and their limits.
struct Case {
    name: &'static str,
    program: PathBuf,
    together: bool,
    hog_keys: &'static str,
    modest_keys: &'static str,
}

fn checked(report: LoadReport) -> Result<LoadReport> {
    let first = report.first_error.as_deref().unwrap_or_default();
    ensure!(report.errors == 0, "{} requests failed, the first: {first}", report.errors);
    Ok(report)
}
