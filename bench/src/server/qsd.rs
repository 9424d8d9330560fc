//! The command lines of qemu-storage-daemon.

use std::path::Path;

use anyhow::{Context, Result};
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::process::Ready;

use super::{Aio, IdleDisk, Setting, socket};
use crate::args::CompareArgs;
use crate::point::Backend;

/// The program.
pub const PROGRAM: &str = "qemu-storage-daemon";

const NULL: &str = "driver=null-co,size=8589934592,read-zeroes=off";

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

/// Returns the options of a node that is a raw file.
pub fn raw(image: &Path) -> String {
    format!("driver=raw,file.driver=file,file.filename={}", image.display())
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
    let (direct, aio) = if cached { ("off", "threads") } else { ("on", "native") };
    let node = format!(
        "driver={driver},discard=unmap,file.driver=file,file.discard=unmap,file.filename={},\
         file.cache.direct={direct},file.aio={aio}",
        image.display()
    );
    export(DaemonCommand::new(PROGRAM), "d", &node, socket, queues, None)
        .ready(Ready::Sockets(vec![socket.to_owned()]))
}

/// Returns the command of one export for one point.
pub fn command(setting: &Setting<'_>, aio: Aio) -> Result<DaemonCommand> {
    let (socket, node) = (socket(setting), blockdev(setting, aio)?);
    let command = DaemonCommand::new(PROGRAM).cpus(&[setting.args.base.place.server_cpu]);
    let command = export(command, "d", &node, &socket, setting.point.queues, None);
    Ok(command.ready(Ready::Sockets(vec![socket])))
}

fn blockdev(setting: &Setting<'_>, aio: Aio) -> Result<String> {
    let (driver, direct) = match setting.point.backend {
        Backend::Null => return Ok(NULL.to_owned()),
        Backend::Tmpfs | Backend::Warm => ("raw", "off"),
        Backend::NewQcow2 => ("qcow2", "on"),
        Backend::Disk | Backend::NewLog | Backend::SteadyLog => ("raw", "on"),
    };
    let aio = match aio {
        Aio::Native => "native",
        Aio::Uring => "io_uring",
    };
    let image = setting.image.context("a file backend needs an image")?.display();
    let file = if setting.args.device.is_some() { "host_device" } else { "file" };
    Ok(format!(
        "driver={driver},file.driver={file},file.filename={image},\
         file.cache.direct={direct},file.aio={aio}"
    ))
}

/// Returns the command of many exports in one daemon.
pub fn idle_command(args: &CompareArgs, disks: &[IdleDisk]) -> DaemonCommand {
    let mut command = DaemonCommand::new(PROGRAM).cpus(&[args.base.place.server_cpu]);
    for IdleDisk { name, image, socket } in disks {
        command = export(command, name, &raw(image), socket, 1, None);
    }
    command.ready(Ready::Sockets(disks.iter().map(|disk| disk.socket.clone()).collect()))
}
