//! Servers and their client: which program, on which CPU, with which load.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_experiment::command::{json, succeed};
use flowstone_testkit::load::{Completion, Limit, LoadOptions, LoadReport, run};
use flowstone_testkit::process::{Ready, TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};
use serde_json::Value;

/// Time before measuring: queues adapt their polling time, threads their placement, and a log image
/// that was just opened first writes into unallocated space, which costs the host more.
pub const RAMP: Duration = Duration::from_millis(250);
/// Folder of files in memory.
pub const TMPFS: &str = "/dev/shm";
/// Size of a small request, and unit of log images.
pub const BLOCK_BYTES: u64 = 4096;
/// Request size of a pass over a disk.
pub const PASS_BYTES: u64 = 128 << 10;

/// The servers: which program, on which CPU; and the CPU of their client.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long, value_name = "FILE")]
    pub flowstone: Option<PathBuf>,
    /// CPU of the servers.
    #[arg(long, default_value_t = 0)]
    pub server_cpu: usize,
    /// CPU of the client.
    #[arg(long, default_value_t = 1)]
    pub client_cpu: usize,
}

impl Place {
    /// Returns the measured binary.
    pub fn program(&self) -> Result<PathBuf> {
        program(self.flowstone.as_deref())
    }

    /// Makes a new image, replacing an old one. `options` are those of `flowstone create`.
    pub fn create<Word: AsRef<OsStr>>(
        &self,
        image: &Path,
        format: &str,
        bytes: u64,
        options: &[Word],
    ) -> Result<()> {
        create(&self.program()?, image, format, bytes, options)
    }

    /// Makes a new log image, replacing an old one.
    pub fn create_log(&self, image: &Path, bytes: u64, options: &[String]) -> Result<()> {
        self.create(image, "log", bytes, options)
    }

    /// Compacts a log image.
    pub fn compact(&self, image: &Path) -> Result<()> {
        succeed(Command::new(self.program()?).arg("compact").arg(image)).map(drop)
    }

    /// Returns the command that serves an image. `more` are further arguments.
    pub fn command(
        &self,
        image: &Path,
        socket: &Path,
        queues: usize,
        more: &[&str],
    ) -> Result<DaemonCommand> {
        let command = serve(&self.program()?, socket).args(["--queues", &queues.to_string()]);
        Ok(command.args(more).arg(image))
    }

    /// Serves an image. `more` are further arguments.
    pub fn serve(
        &self,
        image: &Path,
        socket: &Path,
        queues: usize,
        more: &[&str],
    ) -> Result<Daemon> {
        self.start(self.command(image, socket, queues, more)?, socket)
    }

    /// Starts a server of one disk on its CPU.
    pub fn start(&self, command: DaemonCommand, socket: &Path) -> Result<Daemon> {
        remove(socket)?;
        Ok(command.cpus(&[self.server_cpu]).spawn()?)
    }

    /// Returns a load of one thread on the CPU of clients, which polls.
    pub fn load(&self, socket: &Path, rw: &str, iodepth: u16) -> LoadOptions {
        let load = LoadOptions::new(socket).workload(rw).iodepth(iodepth);
        let completion = Completion::Poll;
        LoadOptions { threads: 1, cpus: vec![self.client_cpu], completion, ..load }
    }

    /// Starts a server of one disk, drives the disk with one load after the other, and ends the
    /// server. Returns the results of the last load, with the CPU time of the server.
    pub fn measure(
        &self,
        command: DaemonCommand,
        loads: &[LoadOptions],
        end: End,
    ) -> Result<LoadReport> {
        let (last, before) = loads.split_last().context("there is no load")?;
        let mut daemon = self.start(command, &last.client.socket)?;
        before.iter().try_for_each(|load| drive(load).map(drop))?;
        let last = LoadOptions { server_pid: Some(daemon.pid()), ..last.clone() };
        let report = drive(&last);
        let report = report.with_context(|| format!("the server said: {}", daemon.stderr()))?;
        end(&mut daemon)?;
        Ok(report)
    }
}

/// Ends a server: `stop` or `stop_peer`.
pub type End = fn(&mut Daemon) -> Result<()>;

/// Returns the binary given, or the one beside this program.
pub fn program(given: Option<&Path>) -> Result<PathBuf> {
    given.map_or_else(|| Ok(flowstone_binary()?), |path| Ok(path.to_owned()))
}

/// Makes a new image, replacing an old one.
pub fn create<Word: AsRef<OsStr>>(
    program: &Path,
    image: &Path,
    format: &str,
    bytes: u64,
    options: &[Word],
) -> Result<()> {
    remove(image)?;
    let mut command = Command::new(program);
    command.args(["create", "--format", format, "--size", &bytes.to_string()]);
    succeed(command.args(options).arg(image)).map(drop)
}

/// Makes a new qcow2 image as qemu does, replacing an old one.
pub fn create_qcow2(image: &Path, bytes: u64) -> Result<()> {
    remove(image)?;
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-f", "qcow2"]).arg(image).arg(bytes.to_string());
    succeed(&mut command).map(drop)
}

/// Returns the command that serves a disk, without the disk.
pub fn serve(program: &Path, socket: &Path) -> DaemonCommand {
    DaemonCommand::new(program).args(["serve", "--socket"]).arg(socket)
}

/// Returns the command that serves many disks in one daemon, from a configuration file in `dir`;
/// `keys` are those of the daemon. Each disk has a name and the keys of its table; `socket_of` that
/// name is its socket.
pub fn serve_all<Name: AsRef<str>>(
    program: &Path,
    dir: &Path,
    keys: &str,
    disks: &[(Name, String)],
) -> Result<DaemonCommand> {
    let path = dir.join("flowstone.toml");
    let table = |(name, keys): &(Name, String)| {
        let (name, socket) = (name.as_ref(), socket_of(dir, name.as_ref()));
        format!("[[disk]]\nname = {name:?}\nsocket = {socket:?}\n{keys}\n")
    };
    let tables: String = disks.iter().map(table).collect();
    std::fs::write(&path, format!("{keys}\n{tables}"))?;
    let command = DaemonCommand::new(program).args(["serve", "--config"]).arg(path);
    Ok(command.ready(Ready::Listening(disks.len())))
}

/// Returns the socket of a disk of many.
pub fn socket_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}

/// Returns the limit of a load that is measured for so many seconds, after the usual ramp.
pub fn timed(runtime: f64) -> Limit {
    seconds(RAMP, runtime)
}

/// Returns the limit of a load that is measured for so many seconds after a ramp.
pub fn seconds(ramp: Duration, runtime: f64) -> Limit {
    Limit::Time { ramp, runtime: Duration::from_secs_f64(runtime) }
}

/// Makes a load one of so many bytes in all.
pub fn whole(load: LoadOptions, block_bytes: u64, bytes: u64) -> LoadOptions {
    LoadOptions { block_bytes, ..load.ops(bytes / block_bytes) }
}

/// Makes a load one that reads or writes so many bytes in sequence.
pub fn pass(load: LoadOptions, rw: &str, bytes: u64) -> LoadOptions {
    whole(load.workload(rw).iodepth(8), PASS_BYTES, bytes)
}

/// Runs a load of which no request may fail.
pub fn drive(load: &LoadOptions) -> Result<LoadReport> {
    let report = run(load)?;
    let first = report.first_error.as_deref().unwrap_or_default();
    ensure!(report.errors == 0, "{} requests failed, the first: {first}", report.errors);
    Ok(report)
}

/// Ends a server in an orderly way.
pub fn stop(daemon: &mut Daemon) -> Result<()> {
    let ended = daemon.terminate(TERMINATE_TIMEOUT).context("flowstone did not end on SIGTERM")?;
    ensure!(ended.success(), "flowstone ended with {ended}: {}", daemon.stderr());
    Ok(())
}

/// Ends qemu-storage-daemon, which has no shutdown to wait for.
pub fn stop_peer(daemon: &mut Daemon) -> Result<()> {
    let _ = daemon.terminate(TERMINATE_TIMEOUT);
    Ok(())
}

/// Returns the statistics of the daemon with this control socket.
pub fn stats(program: &Path, control: &Path) -> Result<Value> {
    json(Command::new(program).args(["stats", "--json", "--control"]).arg(control))
}

/// Removes a file, if there is one.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
