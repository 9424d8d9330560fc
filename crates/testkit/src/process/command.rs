//! The command that starts a daemon, and how its readiness is detected.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::Daemon;
use super::output::Capture;
use crate::{Error, HANG, Result};

/// The sign that a daemon serves.
#[derive(Clone, Debug)]
pub enum Ready {
    /// This many lines `listening on PATH` on stdout.
    Listening(usize),
    /// These sockets exist (for peers without output; clients retry a refused connection).
    Sockets(Vec<PathBuf>),
    /// At once.
    Now,
}

/// A daemon to be started.
#[derive(Clone, Debug)]
pub struct DaemonCommand {
    program: PathBuf,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    cpus: Vec<usize>,
    ready: Ready,
}

impl DaemonCommand {
    /// Starts any program.
    pub fn new(program: impl AsRef<Path>) -> Self {
        DaemonCommand {
            program: program.as_ref().to_path_buf(),
            args: Vec::new(),
            envs: Vec::new(),
            cpus: Vec::new(),
            ready: Ready::Listening(1),
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((key.into(), value.into()));
        self
    }

    /// Binds the process to these CPUs (none given: all).
    pub fn cpus(mut self, cpus: &[usize]) -> Self {
        self.cpus = cpus.to_vec();
        self
    }

    /// Sets the sign of readiness.
    pub fn ready(mut self, ready: Ready) -> Self {
        self.ready = ready;
        self
    }

    /// Starts it and waits until it is ready.
    pub fn spawn(&self) -> Result<Daemon> {
        let mut child = self.start()?;
        let stdout = Capture::start(child.stdout.take().expect("stdout is piped"));
        let stderr = Capture::start(child.stderr.take().expect("stderr is piped"));
        let mut daemon = Daemon { child, stdout, stderr, status: None };
        self.wait_ready(&mut daemon)?;
        Ok(daemon)
    }

    fn start(&self) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.envs.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let context = |e| Error::io(format!("start {}", self.program.display()), e);
        if self.cpus.is_empty() {
            return command.spawn().map_err(context);
        }
        // A child inherits the affinity of the thread that starts it; a separate thread keeps the
        // caller's unchanged.
        thread::scope(|scope| {
            let starter = scope.spawn(|| {
                pin_current_thread(&self.cpus)?;
                command.spawn().map_err(context)
            });
            starter.join().expect("starting a process does not panic")
        })
    }

    fn wait_ready(&self, daemon: &mut Daemon) -> Result<()> {
        match &self.ready {
            Ready::Now => Ok(()),
            Ready::Listening(lines) => {
                let what = format!("{lines} lines `listening on`");
                daemon.wait_until(&what, HANG, |d| listening(&d.stdout()) >= *lines)
            }
            Ready::Sockets(paths) => {
                daemon.wait_until("sockets exist", HANG, |_| paths.iter().all(|path| path.exists()))
            }
        }
    }
}

fn listening(stdout: &str) -> usize {
    stdout.lines().filter(|line| line.starts_with("listening on ")).count()
}

/// Binds the calling thread to `cpus`.
pub fn pin_current_thread(cpus: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    sched_setaffinity(None, &set).map_err(|e| Error::io(format!("bind a thread to {cpus:?}"), e))
}
