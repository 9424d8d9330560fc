//! A `flowstone serve` process: started, killed, restarted, drained, queried.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use flowstone_testkit::HANG;

use super::child::{Child, POLL_INTERVAL};
use super::stats::{CacheStats, DiskStats, Stats, VmStats};
use super::workspace;

const START_TIMEOUT: Duration = HANG;
/// Longest time for a daemon to drain and flush.
const DRAIN_TIMEOUT: Duration = HANG;

/// Longest time until a load has an effect.
const LOAD_TIMEOUT: Duration = HANG;

/// A daemon serving one disk, with its sockets and log in a folder.
#[derive(Debug)]
pub struct Daemon {
    binary: PathBuf,
    image: PathBuf,
    args: Vec<String>,
    socket: PathBuf,
    control: PathBuf,
    log: PathBuf,
    process: Child,
}

impl Daemon {
    /// Serves `image` with further `options` of `flowstone serve` and waits until it listens.
    pub fn serve(image: &Path, options: &[&str], folder: &Path) -> Result<Self> {
        Self::serve_with(workspace::flowstone()?, image, options, folder)
    }

    /// Serves `image` with a binary that has the options of `flowstone`.
    pub fn serve_with(
        binary: PathBuf,
        image: &Path,
        options: &[&str],
        folder: &Path,
    ) -> Result<Self> {
        let socket = folder.join("disk.sock");
        let control = folder.join("control.sock");
        let log = folder.join("daemon.log");
        let args = serve_args(&socket, &control, options, image);
        let process = start(&binary, &args, &log, 1)?;
        Ok(Self { binary, image: image.to_owned(), args, socket, control, log, process })
    }

    /// Returns the socket for QEMU.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Kills the daemon as the out-of-memory killer would (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends the daemon in an orderly way; it must drain, flush and exit with 0.
    pub fn terminate(&mut self) -> Result<()> {
        terminate(&mut self.process)
    }

    /// Starts the daemon again after it ended, on the same image and sockets.
    pub fn restart(&mut self) -> Result<()> {
        self.process = start(&self.binary, &self.args, &self.log, 1)?;
        Ok(())
    }

    /// Starts the daemon again with other options.
    pub fn restart_with(&mut self, options: &[&str]) -> Result<()> {
        self.args = serve_args(&self.socket, &self.control, options, &self.image);
        self.restart()
    }

    /// Starts the daemon again with another binary.
    pub fn restart_as(&mut self, binary: PathBuf) -> Result<()> {
        self.binary = binary;
        self.restart()
    }

    /// Returns the disk's statistics since the daemon started.
    pub fn stats(&self) -> Result<DiskStats> {
        stats(&self.control)?.only_disk()
    }

    /// Returns the statistics of its cache.
    pub fn cache(&self) -> Result<CacheStats> {
        self.stats()?.cache.context("a cache")
    }

    /// Returns the VMs that use its disks.
    pub fn vms(&self) -> Result<Vec<VmStats>> {
        Ok(stats(&self.control)?.vms)
    }

    /// Returns the recognised structures of the disk, as JSON.
    pub fn layout(&self) -> Result<String> {
        let (control, image) = (self.control.to_string_lossy(), self.image.to_string_lossy());
        flowstone(&["stats", "--control", &control, "--layout", &image, "--json"])
    }

    /// Waits until the disk's statistics satisfy `enough`.
    pub fn wait_for(&self, what: &str, enough: impl Fn(&DiskStats) -> bool) -> Result<()> {
        let deadline = Instant::now() + LOAD_TIMEOUT;
        loop {
            let stats = self.stats()?;
            if enough(&stats) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("no {what} within {LOAD_TIMEOUT:?}: {stats:?}\n{}", self.process.output());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Records the disk's requests from now on, until the recorder is terminated. It prints a
    /// summary to `recorder.log` beside the file.
    pub fn record(&self, output: &Path) -> Result<Child> {
        let path = |path: &Path| path.display().to_string();
        let mut args = vec!["record".into(), "--control".into(), path(&self.control)];
        args.extend([path(&self.image), "--output".into(), path(output)]);
        let log = output.with_file_name("recorder.log");
        let mut recorder = Child::spawn(&self.binary, &args, &log)?;
        // The file is created when the daemon has answered.
        recorder.wait_until("the first request", START_TIMEOUT, |_| output.exists())?;
        Ok(recorder)
    }

    /// Resizes the disk while it is in use.
    pub fn resize(&self, size: &str) -> Result<()> {
        let (control, image) = (self.control.to_string_lossy(), self.image.to_string_lossy());
        flowstone(&["resize", "--control", &control, &image, size]).map(drop)
    }

    /// Returns the processor time used since the last start.
    pub fn cpu_time(&self) -> Result<Duration> {
        self.process.cpu_time()
    }
}

/// Runs a flowstone command that must succeed and returns its output.
pub fn flowstone(args: &[&str]) -> Result<String> {
    let binary = workspace::flowstone()?;
    let Output { status, stdout, stderr } = Command::new(&binary)
        .args(args)
        .output()
        .with_context(|| format!("run {}", binary.display()))?;
    if !status.success() {
        let said = [stdout, stderr].concat();
        bail!("flowstone {} ({status}): {}", args.join(" "), String::from_utf8_lossy(&said));
    }
    Ok(String::from_utf8(stdout)?)
}

fn serve_args(socket: &Path, control: &Path, options: &[&str], image: &Path) -> Vec<String> {
    let path = |path: &Path| path.display().to_string();
    let mut args = vec!["serve".into(), "--socket".into(), path(socket)];
    args.extend(["--control".into(), path(control)]);
    args.extend(options.iter().map(ToString::to_string));
    args.push(path(image));
    args
}

/// Returns the statistics of the daemon at this control socket since its start.
pub(super) fn stats(control: &Path) -> Result<Stats> {
    let control = control.to_string_lossy();
    Stats::parse(&flowstone(&["stats", "--control", &control, "--json"])?)
}

/// Starts a daemon of `disks` disks and waits until it listens for all of them.
pub(super) fn start(binary: &Path, args: &[String], log: &Path, disks: usize) -> Result<Child> {
    let earlier = std::fs::read_to_string(log).unwrap_or_default().len();
    let mut process = Child::spawn(binary, args, log)?;
    process.wait_until("ready line", START_TIMEOUT, |process| {
        process.output()[earlier..].matches("listening on").count() >= disks
    })?;
    Ok(process)
}

/// Ends a daemon in an orderly way; it must drain, flush and exit with 0.
pub(super) fn terminate(process: &mut Child) -> Result<()> {
    let status = process.terminate(DRAIN_TIMEOUT)?;
    if !status.success() {
        bail!("the daemon ended with {status}:\n{}", process.output());
    }
    Ok(())
}
