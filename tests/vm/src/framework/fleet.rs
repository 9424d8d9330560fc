//! A daemon that serves several disks by a configuration file, for tests of shared resources.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::child::Child;
use super::daemon::{start, stats, terminate};
use super::qemu::Disk;
use super::stats::Stats;
use super::workspace;

/// A disk of the configuration: its name, and an existing image.
#[derive(Clone, Debug)]
pub struct ServedDisk {
    /// Name in messages and statistics.
    pub name: String,
    /// Path of its image.
    pub image: PathBuf,
}

/// The daemon, with its files in a folder.
#[derive(Debug)]
pub struct Fleet {
    folder: PathBuf,
    disks: Vec<ServedDisk>,
    process: Child,
}

impl Fleet {
    /// Serves disks and waits until it listens for all of them. `head` are lines of the
    /// configuration before the disks, `of_disk` returns those of the disk of an index.
    pub fn serve(
        folder: &Path,
        disks: Vec<ServedDisk>,
        head: &str,
        of_disk: impl Fn(usize) -> String,
    ) -> Result<Self> {
        let process = start_with(folder, &disks, head, of_disk)?;
        Ok(Self { folder: folder.to_owned(), disks, process })
    }

    /// Kills it as the out-of-memory killer would (SIGKILL).
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Ends it in an orderly way; it must drain, flush and exit with 0.
    pub fn terminate(&mut self) -> Result<()> {
        terminate(&mut self.process)
    }

    /// Starts it again after it ended, on the same images and sockets, with another configuration.
    pub fn restart_with(&mut self, head: &str, of_disk: impl Fn(usize) -> String) -> Result<()> {
        self.process = start_with(&self.folder, &self.disks, head, of_disk)?;
        Ok(())
    }

    /// Returns its statistics since its start.
    pub fn stats(&self) -> Result<Stats> {
        stats(&control(&self.folder)).with_context(|| self.process.output())
    }

    /// Returns a guest's disk with `queues` queues that reconnects.
    #[must_use]
    pub fn disk(&self, name: &str, queues: u16) -> Disk {
        Disk { socket: socket(&self.folder, name), queues, reconnect: true }
    }
}

fn start_with(
    folder: &Path,
    disks: &[ServedDisk],
    head: &str,
    of_disk: impl Fn(usize) -> String,
) -> Result<Child> {
    let mut text = format!("control = '{}'\n{head}\n", control(folder).display());
    for (index, ServedDisk { name, image }) in disks.iter().enumerate() {
        let (image, socket) = (image.display(), socket(folder, name));
        writeln!(text, "[[disk]]\nname = '{name}'\nimage = '{image}'")?;
        writeln!(text, "socket = '{}'\n{}", socket.display(), of_disk(index))?;
    }
    let config = folder.join("disks.toml");
    fs::write(&config, text)?;
    let args = ["serve".into(), "--config".into(), config.display().to_string()];
    start(&workspace::flowstone()?, &args, &folder.join("daemon.log"), disks.len())
}

fn control(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.sock"))
}
