//! The command lines of Flowstone.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::process::{Ready, flowstone_binary};

use super::{IdleDisk, Setting, socket};
use crate::args::CompareArgs;
use crate::point::Backend;

/// Size of the null disk.
const NULL: &str = "null:8G";

/// Returns the binary, given or found.
pub fn program(args: &CompareArgs) -> Result<PathBuf> {
    match &args.flowstone {
        Some(path) => Ok(path.clone()),
        None => Ok(flowstone_binary()?),
    }
}

/// Returns the command that serves one disk for one point.
pub fn command(setting: &Setting<'_>) -> Result<DaemonCommand> {
    let (args, point) = (setting.args, setting.point);
    let mut command = DaemonCommand::new(program(args)?)
        .cpus(&[args.server_cpu])
        .args(["serve", "--socket"])
        .arg(socket(setting))
        .args(["--queues", &point.queues.to_string()]);
    command = match point.backend {
        Backend::Null => command.args(["--backend", NULL]),
        Backend::Tmpfs => command.args(["--format", "raw", "--direct", "off"]),
        Backend::Disk => command.args(["--format", "raw", "--direct", "on"]),
        Backend::Warm => {
            let cache = (args.tmpfs_size * 3 / 2).to_string();
            command.args(["--format", "raw", "--direct", "on", "--cache", &cache])
        }
        // The format follows from their file names; so it does for the raw image compared with a
        // log one.
        Backend::NewQcow2 | Backend::NewLog | Backend::SteadyLog => {
            command.args(["--direct", "on"])
        }
    };
    command = command.args(&args.flowstone_arg);
    Ok(match setting.image {
        Some(image) => command.arg(image),
        None => command,
    })
}

/// Returns the command that serves many disks in one daemon, from a configuration file.
pub fn idle_command(args: &CompareArgs, disks: &[IdleDisk]) -> Result<DaemonCommand> {
    let mut config = String::new();
    for disk in disks {
        let IdleDisk { name, image, socket } = disk;
        let (image, socket) = (image.display(), socket.display());
        writeln!(
            config,
            "[[disk]]\nname = \"{name}\"\nimage = \"{image}\"\nsocket = \"{socket}\"\nqueues = 1\n"
        )
        .expect("writing to a string does not fail");
    }
    let dir = disks.first().and_then(|disk| disk.image.parent()).context("no disks")?;
    let path = dir.join("flowstone.toml");
    std::fs::write(&path, config).with_context(|| format!("write {}", path.display()))?;
    Ok(DaemonCommand::new(program(args)?)
        .cpus(&[args.server_cpu])
        .args(["serve", "--config"])
        .arg(path)
        .ready(Ready::Listening(disks.len())))
}
