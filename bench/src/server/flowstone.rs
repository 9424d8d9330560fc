//! The command lines of Flowstone.

use anyhow::Result;
use flowstone_testkit::DaemonCommand;

use super::{Setting, socket};
use crate::args::MEMORY_BYTES;
use crate::place::serve;
use crate::point::Backend;

/// Size of the null disk.
const NULL: &str = "null:8G";

/// Returns the command that serves one disk for one point.
pub fn command(setting: &Setting<'_>) -> Result<DaemonCommand> {
    let (args, point) = (setting.args, setting.point);
    let mut command = serve(&args.base.place.program()?, &socket(setting))
        .args(["--queues", &point.queues.to_string()]);
    command = match point.backend {
        Backend::Null => command.args(["--backend", NULL]),
        Backend::Tmpfs => command.args(["--format", "raw", "--direct", "off"]),
        Backend::Disk => command.args(["--format", "raw", "--direct", "on"]),
        Backend::Warm => {
            let cache = (MEMORY_BYTES * 3 / 2).to_string();
            command.args(["--format", "raw", "--direct", "on", "--cache", &cache])
        }
        // The format follows from their file names; so it does for the raw image compared with a
        // log one.
        Backend::NewQcow2 | Backend::NewLog | Backend::SteadyLog => {
            command.args(["--direct", "on"])
        }
    };
    Ok(match setting.image {
        Some(image) => command.arg(image),
        None => command,
    })
}
