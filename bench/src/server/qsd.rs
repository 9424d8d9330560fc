//! The command lines of qemu-storage-daemon.

use std::path::Path;

use anyhow::{Context, Result};
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::process::Ready;

use super::{Aio, Setting, socket};
use crate::point::Backend;

/// The program.
pub const PROGRAM: &str = "qemu-storage-daemon";

/// Options of the node that answers at once.
pub const NULL: &str = "driver=null-co,size=8589934592,read-zeroes=off";

/// Returns the name in tables.
pub fn name(aio: Aio, backend: Backend) -> String {
    let engine = match (backend, aio) {
        (Backend::Null, _) => "",
        (_, Aio::Native) => " aio=native",
        (_, Aio::Uring) => " io_uring",
    };
    format!("QSD{engine}")
}

/// Adds an export, with the options of its node, to a command.
pub fn export(
    command: DaemonCommand,
    name: &str,
    node: &str,
    socket: &Path,
    queues: usize,
    thread: Option<&str>,
) -> DaemonCommand {
    let mut export = format!(
        "type=vhost-user-blk,id=e{name},node-name={name},addr.type=unix,addr.path={},\
         writable=on,num-queues={queues}",
        socket.display()
    );
    export += &thread.map_or(String::new(), |thread| format!(",iothread={thread}"));
    command.args(["--blockdev", &format!("node-name={name},{node}"), "--export", &export])
}

/// Returns the options of a node: an image in a file or a block device, and its I/O.
pub fn node(format: &str, file: &str, image: &Path, direct: bool, aio: &str) -> String {
    let (image, direct) = (image.display(), if direct { "on" } else { "off" });
    format!(
        "driver={format},file.driver={file},file.filename={image},\
         file.cache.direct={direct},file.aio={aio}"
    )
}

/// Returns the command that serves one image, with discards enabled.
pub fn serve(
    driver: &str,
    image: &Path,
    socket: &Path,
    queues: usize,
    cached: bool,
) -> DaemonCommand {
    // Direct I/O uses its own engine; buffered I/O uses threads.
    let aio = if cached { "threads" } else { "native" };
    let node = node(driver, "file", image, !cached, aio) + ",discard=unmap,file.discard=unmap";
    export(DaemonCommand::new(PROGRAM), "d", &node, socket, queues, None)
        .ready(Ready::Sockets(vec![socket.to_owned()]))
}

/// Returns the command of one export for one point.
pub fn command(setting: &Setting<'_>, aio: Aio) -> Result<DaemonCommand> {
    let (socket, node) = (socket(setting), blockdev(setting, aio)?);
    let queues = setting.point.queues;
    let command = export(DaemonCommand::new(PROGRAM), "d", &node, &socket, queues, None);
    Ok(command.ready(Ready::Sockets(vec![socket])))
}

fn blockdev(setting: &Setting<'_>, aio: Aio) -> Result<String> {
    let (driver, direct) = match setting.point.backend {
        Backend::Null => return Ok(NULL.to_owned()),
        Backend::Tmpfs | Backend::Warm => ("raw", false),
        Backend::NewQcow2 => ("qcow2", true),
        Backend::Disk | Backend::NewLog | Backend::SteadyLog => ("raw", true),
    };
    let aio = match aio {
        Aio::Native => "native",
        Aio::Uring => "io_uring",
    };
    let image = setting.image.context("a file backend needs an image")?;
    let file = if setting.args.device.is_some() { "host_device" } else { "file" };
    Ok(node(driver, file, image, direct, aio))
}
