//! Who takes part, how each is given its disk, started and stopped.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use flowstone_testkit::process::{TERMINATE_TIMEOUT, flowstone_binary};
use flowstone_testkit::{Daemon, DaemonCommand};

use super::LogOptions;
use crate::server::qsd;

/// One of those that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Contender {
    /// Flowstone on a raw image whose every block has been written.
    Raw,
    /// Flowstone on a new log image.
    Log,
    /// qemu-storage-daemon on a raw image whose every block has been written.
    QsdRaw,
    /// qemu-storage-daemon on a new qcow2 image.
    Qcow2,
}

impl Contender {
    pub const ALL: [Self; 4] = [Self::Raw, Self::Log, Self::QsdRaw, Self::Qcow2];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Log => "log",
            Self::QsdRaw => "QSD raw",
            Self::Qcow2 => "QSD qcow2",
        }
    }

    /// Makes its disk.
    pub fn make(self, options: &LogOptions) -> Result<PathBuf> {
        let name = match self {
            Self::Raw | Self::QsdRaw => "bench.raw",
            Self::Log => "bench.flow",
            Self::Qcow2 => "bench.qcow2",
        };
        let image = options.dir.join(name);
        let size = options.size.to_string();
        match self {
            // Both raw ones share a file, written once.
            Self::Raw | Self::QsdRaw => fill(&image, options.size)?,
            Self::Log => create_log(options, &image, &[])?,
            Self::Qcow2 => {
                let image = image.display().to_string();
                succeed(
                    Command::new("qemu-img").args(["create", "-q", "-f", "qcow2", &image, &size]),
                )?;
            }
        }
        Ok(image)
    }

    /// Gives its space back; the raw image stays for the next run.
    pub fn remove(self, image: &Path) -> Result<()> {
        match self {
            Self::Raw | Self::QsdRaw => Ok(()),
            Self::Log | Self::Qcow2 => Ok(std::fs::remove_file(image)?),
        }
    }

    /// How it is started.
    pub fn command(
        self,
        options: &LogOptions,
        image: &Path,
        socket: &Path,
        queues: usize,
    ) -> Result<DaemonCommand> {
        let driver = match self {
            Self::Raw | Self::Log => {
                let queues = queues.to_string();
                return Ok(DaemonCommand::new(program(options)?)
                    .cpus(&[options.server_cpu])
                    .args(["serve", "--direct", "on", "--queues", &queues, "--socket"])
                    .arg(socket)
                    .arg(image));
            }
            Self::QsdRaw => "raw",
            Self::Qcow2 => "qcow2",
        };
        Ok(qsd::serve(driver, image, socket, queues, false).cpus(&[options.server_cpu]))
    }

    /// Ends it in order.
    pub fn stop(self, daemon: &mut Daemon) -> Result<()> {
        let ended = daemon.terminate(TERMINATE_TIMEOUT);
        if matches!(self, Self::Raw | Self::Log) {
            let status = ended.context("flowstone did not end on SIGTERM")?;
            ensure!(status.success(), "flowstone ended with {status}");
        }
        Ok(())
    }
}

/// Makes a new log image.
pub fn create_log(options: &LogOptions, image: &Path, more: &[&str]) -> Result<()> {
    std::fs::create_dir_all(&options.dir)?;
    let _ = std::fs::remove_file(image);
    let size = options.size.to_string();
    succeed(Command::new(program(options)?).args(["create", "--size", &size]).args(more).arg(image))
}

/// Puts a log image in order.
pub fn compact(options: &LogOptions, image: &Path) -> Result<()> {
    succeed(Command::new(program(options)?).arg("compact").arg(image))
}

/// The binary that is measured.
pub fn program(options: &LogOptions) -> Result<PathBuf> {
    match &options.flowstone {
        Some(path) => Ok(path.clone()),
        None => Ok(flowstone_binary()?),
    }
}

/// Runs a command that must succeed.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("run {command:?}"))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Writes every block of a raw image, unless that has been done.
#[expect(clippy::disallowed_methods, reason = "nothing else syncs this file")]
fn fill(image: &Path, bytes: u64) -> Result<()> {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    let is_full = |it: std::fs::Metadata| it.len() == bytes && it.blocks() * 512 >= bytes;
    if std::fs::metadata(image).is_ok_and(is_full) {
        return Ok(());
    }
    let mut file = std::fs::File::create(image)?;
    let mut chunk = vec![0; 1 << 20];
    fastrand::Rng::with_seed(bytes).fill(&mut chunk);
    for _ in 0..bytes >> 20 {
        file.write_all(&chunk)?;
    }
    Ok(file.sync_all()?)
}
