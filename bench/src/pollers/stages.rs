//! One queue on one thread or on two, where a request costs more than its submission: copies and
//! checksums of large writes, compressed clusters, copies out of the cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use flowstone_experiment::command::succeed;
use flowstone_experiment::{Experiment, Figures, figures};
use flowstone_testkit::Daemon;
use flowstone_testkit::load::{Completion, LoadOptions};
use tempfile::tempdir_in;

use super::{PollersArgs, forms};
use crate::place::{TMPFS, drive, pass, serve, stop, timed};
use crate::raw_file::write_full;

const FORMS: [&str; 3] = ["fused", "split", "auto"];
/// Beginning of the points' names.
const PREFIX: &str = "stages, ";
const BYTES: u64 = 512 << 20;

/// A disk and its load.
struct Load {
    name: &'static str,
    image: &'static str,
    options: &'static [&'static str],
    /// Request order and direction of a pass before measuring.
    before: Option<&'static str>,
    rw: &'static str,
    block_bytes: u64,
    depth: u16,
    queues: usize,
}

const LOADS: [Load; 5] = [
    Load {
        name: "log, 128 KiB writes QD8",
        image: "disk.flow",
        options: &["--direct", "off"],
        before: Some("write"),
        rw: "write",
        block_bytes: 128 << 10,
        depth: 8,
        queues: 1,
    },
    Load {
        name: "log, 4 KiB random writes QD32",
        image: "disk.flow",
        options: &["--direct", "off"],
        before: Some("write"),
        rw: "randwrite",
        block_bytes: 4096,
        depth: 32,
        queues: 1,
    },
    Load {
        name: "compressed qcow2, 64 KiB random reads QD8",
        image: "disk.qcow2",
        options: &["--direct", "off"],
        before: None,
        rw: "randread",
        block_bytes: 64 << 10,
        depth: 8,
        queues: 1,
    },
    Load {
        name: "cache hits, 128 KiB random reads QD4",
        image: "disk.raw",
        options: &["--direct", "off", "--cache", "1G"],
        before: Some("read"),
        rw: "randread",
        block_bytes: 128 << 10,
        depth: 4,
        queues: 1,
    },
    Load {
        name: "raw, four queues, 4 KiB random reads QD8",
        image: "disk.raw",
        options: &["--direct", "off", "--queues", "4"],
        before: None,
        rw: "randread",
        block_bytes: 4096,
        depth: 8,
        queues: 4,
    },
];

/// Measures each form at all loads, on the server's and the client's CPU.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    for load in &LOADS {
        let dir = tempdir_in(TMPFS)?;
        let mut servers = Vec::new();
        for form in FORMS {
            let at = dir.path().join(form);
            std::fs::create_dir(&at)?;
            servers.push((form, Server::start(args, load, form, &at)?));
        }
        let point = [(format!("{PREFIX}{}", load.name), ())];
        let named: Vec<_> = servers.iter().map(|(form, it)| (format!("`{form}`"), it)).collect();
        experiment.run(args.run.rounds, &point, &named, |(), it| it.measure(args, load))?;
        servers.into_iter().try_for_each(|(_, mut it)| stop(&mut it.daemon))?;
    }
    Ok(format!(
        "Disks of {} MiB on tmpfs with `--pollers per-queue`; server on CPUs {} and {}, one client \
         thread on the latter, asleep while it waits. {} rounds of {} s, in turn; medians, 95 % \
         intervals.",
        BYTES >> 20,
        args.place.server_cpu,
        args.place.client_cpu,
        args.run.rounds,
        args.runtime,
    ))
}

struct Server {
    daemon: Daemon,
    socket: PathBuf,
}

impl Server {
    fn start(args: &PollersArgs, load: &Load, form: &str, at: &Path) -> Result<Self> {
        let (image, socket) = (at.join(load.image), at.join("sock"));
        match image.extension().and_then(|it| it.to_str()) {
            Some("flow") => args.place.create_log(&image, BYTES, &[])?,
            Some("qcow2") => compressed(&at.join("text"), &image)?,
            _ => write_full(&image, BYTES)?,
        }
        let command = serve(&args.place.program()?, &socket)
            .args(["--pollers", "per-queue", "--pipeline", form])
            .args(load.options)
            .arg(image)
            .cpus(&[args.place.server_cpu, args.place.client_cpu]);
        let daemon = command.spawn()?;
        if let Some(rw) = load.before {
            drive(&pass(LoadOptions::new(&socket), rw, BYTES))?;
        }
        Ok(Self { daemon, socket })
    }

    fn measure(&self, args: &PollersArgs, load: &Load) -> Result<Figures> {
        let mut options = args.place.load(&self.socket, load.rw, load.depth);
        options.client.queues = load.queues;
        options.block_bytes = load.block_bytes;
        options.completion = Completion::Eventfd;
        options.limit = timed(args.runtime);
        options.server_pid = Some(self.daemon.pid());
        Ok(figures(&drive(&options)?))
    }
}

/// Makes an image of words, in compressed clusters.
fn compressed(text: &Path, image: &Path) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let words: Vec<String> = (0..3000).map(|_| format!("{:x} ", random.u32(..))).collect();
    let mut all = String::new();
    while all.len() < BYTES as usize / 4 {
        all += &words[random.usize(..words.len())];
    }
    all.truncate(BYTES as usize / 4);
    std::fs::write(text, all)?;
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-c", "-f", "raw", "-O", "qcow2"]).args([text, image]);
    succeed(&mut command)?;
    Ok(std::fs::remove_file(text)?)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    forms::rows_of(experiment, PREFIX)
}
