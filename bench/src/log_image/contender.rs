//! The contenders: how each gets its disk, is started and stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::Args;
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};

use crate::raw_file::fill;

/// A contender; all of them are served by Flowstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A raw image with every block written.
    Raw,
    /// The same with one queue, whatever the number of the others.
    RawAlone,
    /// A log image with every block written.
    Log,
}

impl Contender {
    /// Returns the name in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::RawAlone => "one raw writer",
            Self::Log => "log",
        }
    }

    /// Returns how many of the point's queues it has.
    pub const fn queues(self, queues: usize) -> usize {
        match self {
            Self::Raw | Self::Log => queues,
            Self::RawAlone => 1,
        }
    }
}

/// The servers: which program, on which CPU; and the CPU of their client.
#[derive(Clone, Debug, Args)]
pub struct Place {
    /// The flowstone binary [default: FLOWSTONE_BIN, or beside this program].
    #[arg(long)]
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
        self.flowstone.clone().map_or_else(|| Ok(flowstone_binary()?), Ok)
    }

    /// Makes a new log image, replacing an old one.
    pub fn create_log(&self, image: &Path, bytes: u64, more: &[String]) -> Result<()> {
        remove(image)?;
        let size = bytes.to_string();
        let mut command = Command::new(self.program()?);
        command.args(["create", "--format", "log", "--size", &size]).args(more).arg(image);
        succeed(&mut command)
    }

    /// Makes sure that every block of a raw image is written.
    pub fn fill_raw(&self, image: &Path, bytes: u64) -> Result<()> {
        fill(image, bytes)
    }

    /// Compacts a log image.
    pub fn compact(&self, image: &Path) -> Result<()> {
        succeed(Command::new(self.program()?).arg("compact").arg(image))
    }

    /// Serves an image. `more` are further arguments.
    pub fn serve(
        &self,
        image: &Path,
        socket: &Path,
        queues: usize,
        more: &[String],
    ) -> Result<Daemon> {
        remove(socket)?;
        let queues = queues.to_string();
        let command = DaemonCommand::new(self.program()?)
            .cpus(&[self.server_cpu])
            .args(["serve", "--queues", &queues, "--socket"])
            .arg(socket)
            .args(more)
            .arg(image);
        Ok(command.spawn()?)
    }
}

/// Ends a server in an orderly way.
pub fn stop(daemon: &mut Daemon) -> Result<()> {
    let ended = daemon.terminate(TERMINATE_TIMEOUT).context("flowstone did not end on SIGTERM")?;
    ensure!(ended.success(), "flowstone ended with {ended}: {}", daemon.stderr());
    Ok(())
}

/// Runs a command that must succeed; its output is shown only if it fails.
pub fn succeed(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, said.trim());
    Ok(())
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
