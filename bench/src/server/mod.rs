//! The measured servers: Flowstone, qemu-storage-daemon, and fio on the bare file.
//!
//! A `Server` knows its command for a point, or why it cannot be measured. All of them get the same
//! file, the same CPU and the same client; fio is its own client and runs on the client's CPU.

pub(crate) mod fio;
mod flowstone;
pub(crate) mod qsd;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use flowstone_experiment::command::succeed;
use flowstone_experiment::noise::{Noise, OTHERS_PERCENT};
use flowstone_experiment::{Figures, figures};
use flowstone_testkit::DaemonCommand;
use flowstone_testkit::load::LoadOptions;

use crate::args::{CompareArgs, LOG_BYTES, MEMORY_BYTES};
use crate::place::{End, Place, pass, stop, stop_peer};
use crate::point::{Backend, Point};

/// The file I/O engine of qemu-storage-daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aio {
    /// Linux AIO; needs O_DIRECT.
    Native,
    /// io_uring.
    Uring,
}

/// A measured server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// The one this is about.
    Flowstone,
    /// The same on a raw image, beside log images.
    FlowstoneRaw,
    /// qemu-storage-daemon with this file I/O engine.
    Qsd(Aio),
    /// fio on the file itself: without a ring or a second process, so the practical limit.
    Fio,
}

/// The input of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'a> {
    /// The options of the run.
    pub args: &'a CompareArgs,
    /// The point to measure.
    pub point: &'a Point,
    /// The file, unless the backend is null.
    pub image: Option<&'a Path>,
    /// A directory for sockets.
    pub dir: &'a Path,
}

impl Server {
    /// Returns the name in tables.
    pub fn name(self, backend: Backend) -> String {
        match self {
            Server::Flowstone => "Flowstone".to_owned(),
            Server::FlowstoneRaw => "Flowstone, raw image".to_owned(),
            Server::Qsd(aio) => qsd::name(aio, backend),
            Server::Fio => "plain fio io_uring".to_owned(),
        }
    }

    /// Returns the servers to measure at a point.
    pub fn for_point(point: &Point) -> Vec<Server> {
        let mut servers = vec![Server::Flowstone];
        let engines: &[Aio] = match point.backend {
            Backend::Null | Backend::Tmpfs | Backend::Warm => &[Aio::Uring],
            Backend::NewQcow2 => &[Aio::Native],
            Backend::Disk => &[Aio::Native, Aio::Uring],
            Backend::NewLog | Backend::SteadyLog => {
                return vec![Server::Flowstone, Server::FlowstoneRaw];
            }
        };
        servers.extend(engines.iter().copied().map(Server::Qsd));
        if matches!(point.backend, Backend::Null | Backend::Tmpfs | Backend::Disk) {
            servers.push(Server::Fio);
        }
        servers
    }

    /// Returns why it cannot be measured at a point, if so.
    pub fn missing(self, point: &Point, args: &CompareArgs) -> Option<String> {
        match self {
            Server::Flowstone | Server::FlowstoneRaw => {
                args.base.place.program().err().map(|e| format!("{e:#}"))
            }
            Server::Qsd(_) => version(Path::new(qsd::PROGRAM)).err().map(|e| format!("{e:#}")),
            Server::Fio if point.backend == Backend::Null => {
                Some("fio has no ring to measure on a disk that does nothing".to_owned())
            }
            Server::Fio => version(Path::new(fio::PROGRAM)).err().map(|e| format!("{e:#}")),
        }
    }

    /// Starts it, measures, stops it, and records how busy the machine was meanwhile.
    pub fn measure(self, setting: &Setting<'_>) -> Result<Figures> {
        let noise = Noise::start();
        let mut figures = match self {
            Server::Flowstone | Server::FlowstoneRaw => {
                serve_and_load(flowstone::command(setting)?, setting, stop)?
            }
            Server::Qsd(aio) => serve_and_load(qsd::command(setting, aio)?, setting, stop_peer)?,
            Server::Fio => fio::measure(setting)?,
        };
        figures.push((OTHERS_PERCENT, noise.others_percent()));
        Ok(figures)
    }
}

/// Returns the command that serves an image of a format, by Flowstone or by its peer, and how that
/// one ends.
pub fn of_image(
    place: &Place,
    is_peer: bool,
    (format, image): (&str, &Path),
    socket: &Path,
    queues: usize,
    is_cached: bool,
) -> Result<(DaemonCommand, End)> {
    if is_peer {
        return Ok((qsd::serve(format, image, socket, queues, is_cached), stop_peer));
    }
    let more = ["--format", format, "--direct", if is_cached { "off" } else { "on" }];
    Ok((place.command(image, socket, queues, &more)?, stop))
}

/// Returns the versions of all measured programs, as each program prints it.
pub fn versions(args: &CompareArgs) -> Vec<(String, String)> {
    let said = |program: Result<PathBuf>| {
        program.and_then(|path| version(&path)).unwrap_or_else(|e| format!("missing: {e:#}"))
    };
    let flowstone = ("flowstone".to_owned(), said(args.base.place.program()));
    let peer = |name: &str| (name.to_owned(), said(Ok(PathBuf::from(name))));
    vec![flowstone, peer(qsd::PROGRAM), peer(fio::PROGRAM)]
}

/// Returns the first line of `program --version`.
fn version(program: &Path) -> Result<String> {
    let output = succeed(Command::new(program).arg("--version"))?;
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Returns the socket of a server for a setting.
fn socket(setting: &Setting<'_>) -> PathBuf {
    setting.dir.join("vhost.sock")
}

fn serve_and_load(command: DaemonCommand, setting: &Setting<'_>, end: End) -> Result<Figures> {
    let Setting { args, point, .. } = *setting;
    let (place, socket) = (&args.base.place, socket(setting));
    let mut loads = Vec::new();
    if point.backend == Backend::Warm {
        // Read in sequence once, so that it is cached.
        loads.push(pass(LoadOptions::new(&socket), "read", MEMORY_BYTES));
    }
    let mut load = point.load(place, &socket, args.base.runtime);
    if point.backend == Backend::NewLog {
        load.span_bytes = LOG_BYTES;
    }
    loads.push(load);
    Ok(figures(&place.measure(command, &loads, end)?))
}
