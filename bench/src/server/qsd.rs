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

const NULL: &str = "driver=null-co,node-name=d,size=8589934592,read-zeroes=off";

/// Returns the name in tables.
pub fn name(aio: Aio, iothread: bool, backend: Backend) -> String {
    let engine = match (backend, aio) {
        (Backend::Null, _) => "",
        (_, Aio::Native) => " aio=native",
        (_, Aio::Uring) => " io_uring",
    };
    format!("QSD{engine}{}", if iothread { " iothread" } else { "" })
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
        "driver={driver},node-name=d,discard=unmap,file.driver=file,file.discard=unmap,\
         file.filename={},file.cache.direct={direct},file.aio={aio}",
        image.display()
    );
    let export = format!(
        "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={},\
         writable=on,num-queues={queues}",
        socket.display()
    );
    DaemonCommand::new(PROGRAM)
        .args(["--blockdev", &node, "--export", &export])
        .ready(Ready::Sockets(vec![socket.to_owned()]))
}

/// Returns the command of one export for one point.
pub fn command(setting: &Setting<'_>, aio: Aio, iothread: bool) -> Result<DaemonCommand> {
    let socket = socket(setting);
    let (path, queues) = (socket.display(), setting.point.queues);
    let mut export = format!(
        "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={path},\
         writable=on,num-queues={queues}"
    );
    let mut command = DaemonCommand::new(PROGRAM).cpus(&[setting.args.server_cpu]);
    if iothread {
        command = command.args(["--object", "iothread,id=io"]);
        export.push_str(",iothread=io");
    }
    let node = blockdev(setting, aio)?;
    let args = ["--blockdev", &node, "--export", &export];
    Ok(command.args(args).ready(Ready::Sockets(vec![socket.clone()])))
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
        "driver={driver},node-name=d,file.driver={file},file.filename={image},\
         file.cache.direct={direct},file.aio={aio}"
    ))
}

/// Returns the command of many exports in one daemon.
pub fn idle_command(args: &CompareArgs, disks: &[IdleDisk]) -> DaemonCommand {
    let mut command = DaemonCommand::new(PROGRAM).cpus(&[args.server_cpu]);
    for disk in disks {
        let IdleDisk { name, image, socket } = disk;
        let node = format!(
            "driver=raw,node-name={name},file.driver=file,file.filename={}",
            image.display()
        );
        let export = format!(
            "type=vhost-user-blk,id=e{name},node-name={name},addr.type=unix,addr.path={},\
             writable=on,num-queues=1",
            socket.display()
        );
        command = command.args(["--blockdev", &node, "--export", &export]);
    }
    command.ready(Ready::Sockets(disks.iter().map(|disk| disk.socket.clone()).collect()))
}
