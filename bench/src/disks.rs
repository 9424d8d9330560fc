//! Servers of several disks each, and their images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use flowstone_testkit::load::{LoadOptions, LoadReport, run_together};
use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand};
use serde_json::Value;
use tempfile::{TempDir, tempdir_in};

use crate::place::{Place, TMPFS, serve_all, socket_of, stats, stop};
use crate::raw_file::write_full;
use crate::server::qsd;

/// A server and its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Flowstone with this choice of pollers.
    Flowstone(&'static str),
    /// Flowstone with a thread per queue, in this form.
    Pipeline(&'static str),
    /// qemu-storage-daemon, all disks in its main thread.
    Qsd,
    /// qemu-storage-daemon with one iothread for all disks, which polls for a while before it
    /// sleeps.
    QsdOneThread,
    /// qemu-storage-daemon with an iothread for each disk.
    QsdThreads,
}

impl Who {
    /// Returns the name in tables.
    pub fn name(self) -> String {
        match self {
            Self::Flowstone(choice) | Self::Pipeline(choice) => format!("`{choice}`"),
            Self::Qsd => "QSD".to_owned(),
            Self::QsdOneThread => "QSD, one iothread".to_owned(),
            Self::QsdThreads => "QSD, an iothread for each".to_owned(),
        }
    }
}

/// The disks to serve.
#[derive(Clone, Copy, Debug)]
pub struct Disks<'a> {
    /// Their number.
    pub count: usize,
    /// Size of each; written in full, unless it is sparse.
    pub bytes: u64,
    /// The images are sparse.
    pub sparse: bool,
    /// Folder of the images; those on tmpfs are served through the page cache.
    pub dir: &'a Path,
}

impl Disks<'_> {
    /// Returns small disks in memory.
    pub fn on_tmpfs(count: usize) -> Self {
        Self { count, bytes: 64 << 20, sparse: false, dir: Path::new(TMPFS) }
    }
}

/// A running server.
pub struct Server {
    /// Name in tables.
    pub name: String,
    daemon: Daemon,
    program: PathBuf,
    is_flowstone: bool,
    sockets: Vec<PathBuf>,
    dir: TempDir,
}

/// Several servers, idle unless they are driven.
pub struct Servers(pub Vec<Server>);

impl Servers {
    /// Starts one of each, with its own disks, on the CPU of servers.
    pub fn start(place: &Place, who: &[Who], disks: Disks<'_>) -> Result<Self> {
        Self::start_on(place, who, disks, &[place.server_cpu])
    }

    /// The same on these CPUs.
    pub fn start_on(place: &Place, who: &[Who], disks: Disks<'_>, cpus: &[usize]) -> Result<Self> {
        let start = |who: &Who| Server::start(place, *who, disks, cpus, "");
        who.iter().map(start).collect::<Result<_>>().map(Self)
    }

    /// Ends all of them.
    pub fn stop(self) -> Result<()> {
        self.0.into_iter().try_for_each(Server::stop)
    }
}

impl Server {
    /// Makes the disks and serves them. `keys` are added to the configuration of Flowstone.
    pub fn start(
        place: &Place,
        who: Who,
        disks: Disks<'_>,
        cpus: &[usize],
        keys: &str,
    ) -> Result<Self> {
        let dir = tempdir_in(disks.dir)?;
        let image = |disk| dir.path().join(format!("{}.raw", name_of(disk)));
        let images: Vec<PathBuf> = (0..disks.count).map(image).collect();
        let socket = |disk| socket_of(dir.path(), &name_of(disk));
        let sockets: Vec<PathBuf> = (0..disks.count).map(socket).collect();
        for image in &images {
            if disks.sparse {
                std::fs::File::create(image)?.set_len(disks.bytes)?;
            } else {
                write_full(image, disks.bytes)?;
            }
        }
        let program = place.program()?;
        let direct = disks.dir != Path::new(TMPFS);
        let (name, is_flowstone) =
            (who.name(), matches!(who, Who::Flowstone(_) | Who::Pipeline(_)));
        let flowstone = |pollers, form| {
            let control = control(dir.path());
            let keys = format!("control = {control:?}\npollers = {pollers:?}\n{keys}");
            serve_all(&program, dir.path(), &keys, &tables(&images, direct, form))
        };
        let command = match who {
            Who::Flowstone(pollers) => flowstone(pollers, "fused")?,
            Who::Pipeline(form) => flowstone("per-queue", form)?,
            qsd => qemu(qsd, &images, &sockets, direct),
        };
        let daemon = command.cpus(cpus).spawn()?;
        Ok(Self { name, daemon, program, is_flowstone, sockets, dir })
    }

    /// Drives all of its disks at once, or as many as there are loads.
    pub fn drive_each(&self, loads: &[LoadOptions]) -> Result<(LoadReport, Vec<LoadReport>)> {
        let mut loads = loads.to_vec();
        loads[0].server_pid = Some(self.daemon.pid());
        let (report, each) = run_together(&loads)
            .with_context(|| format!("{}, which said: {}", self.name, self.daemon.stderr()))?;
        let first = report.first_error.as_deref().unwrap_or_default();
        ensure!(report.errors == 0, "{}: {} requests failed: {first}", self.name, report.errors);
        Ok((report, each))
    }

    /// Drives all of its disks with the same load.
    pub fn drive(&self, load: impl Fn(&Path) -> LoadOptions) -> Result<LoadReport> {
        let load = |(disk, socket): (u64, &PathBuf)| {
            let mut load = load(socket);
            load.seed += disk;
            load
        };
        let loads: Vec<LoadOptions> = (0..).zip(&self.sockets).map(load).collect();
        Ok(self.drive_each(&loads)?.0)
    }

    /// Returns the sockets of its disks.
    pub fn sockets(&self) -> &[PathBuf] {
        &self.sockets
    }

    /// Returns its process ID.
    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Returns its statistics.
    pub fn stats(&self) -> Result<Value> {
        stats(&self.program, &control(self.dir.path()))
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<()> {
        if self.is_flowstone {
            stop(&mut self.daemon)?;
        } else {
            // With iothreads, version 7.2 sometimes does not react to SIGTERM.
            self.daemon.kill()?;
        }
        Ok(())
    }
}

fn control(dir: &Path) -> PathBuf {
    dir.join("control")
}

fn name_of(disk: usize) -> String {
    format!("d{disk}")
}

/// Returns the names and the keys of the disks of Flowstone.
fn tables(images: &[PathBuf], direct: bool, pipeline: &str) -> Vec<(String, String)> {
    let direct = if direct { "on" } else { "off" };
    let table = |(disk, image): (usize, &PathBuf)| {
        let more = format!("queues = 1\ndirect = {direct:?}\npipeline = {pipeline:?}");
        (name_of(disk), format!("image = {image:?}\n{more}"))
    };
    images.iter().enumerate().map(table).collect()
}

fn qemu(who: Who, images: &[PathBuf], sockets: &[PathBuf], direct: bool) -> DaemonCommand {
    let mut command = DaemonCommand::new(qsd::PROGRAM);
    let aio = if direct { "native" } else { "io_uring" };
    for (disk, (image, socket)) in images.iter().zip(sockets).enumerate() {
        let thread = match who {
            Who::QsdThreads => Some(disk),
            Who::QsdOneThread => Some(0),
            Who::Qsd | Who::Flowstone(_) | Who::Pipeline(_) => None,
        };
        if thread == Some(disk) {
            command = command.args(["--object", &format!("iothread,id=io{disk}")]);
        }
        let node = qsd::node("raw", "file", image, direct, aio);
        let thread = thread.map(|thread| format!("io{thread}"));
        command = qsd::export(command, &name_of(disk), &node, socket, 1, thread.as_deref());
    }
    command.ready(Ready::Sockets(sockets.to_vec()))
}
