//! The life of a daemon: opens everything, reports readiness, waits for a signal, stops everything.
//!
//! No disk waits for another: they are opened in parallel, commands look one up and release the
//! lock, and at the end all stop in parallel, each flushed and closed as soon as it can be.

mod changes;
mod commands;
mod groups;
mod plan;
mod reload;

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{Errno, Error, Result, mutated};
use flowstone_control::{ControlServer, Origin};
use flowstone_fileio::FileOpener;
use flowstone_host::open_files;
use flowstone_resources::GuestAgents;
use flowstone_runner::Pollers;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::{Handle, Signals};
use tracing::{error, info, warn};

use self::changes::Changes;
use self::plan::Plan;
use crate::config::{Config, DaemonConfig, DiskConfig};
use crate::disk::Disk;
use crate::disks::{Begun, Disks, died, last_of};
use crate::memory_charge;
use crate::recording::Places;
use crate::resource_monitor::{Caches, ResourceMonitor};
use crate::stack::{Shared, Stack};
use crate::state::State;
use crate::{CONTROL_DEFAULT, CONTROL_VARIABLE};

/// Time for monitors to disconnect from a stopping daemon.
const STOP_PATIENCE: Duration = Duration::from_secs(3);
/// Time that the daemon waits for disks being opened before it reports readiness without them. A
/// disk with a hanging host may never open, and a service manager that waits too long gives up on
/// all disks.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// The state of a running daemon.
struct Daemon {
    start: Instant,
    config: DaemonConfig,
    /// Source of the configuration, for reloading.
    source: Option<(PathBuf, Vec<OsString>)>,
    reloading: Mutex<()>,
    shared: Shared,
    pollers: Arc<Pollers>,
    disks: Arc<Disks>,
    /// Connections to guests' file caches, if enabled.
    guests: Option<Arc<GuestAgents>>,
    /// Sizes the caches, if there are any.
    resource_monitor: ResourceMonitor,
    recordings: Places,
    state: Option<State>,
    changes: Changes,
}

/// Serves all disks of `config` until SIGTERM or SIGINT; `opener` opens the files of images. Prints
/// `listening on PATH` for each disk that is ready. A disk that cannot be served is reported and
/// does not prevent the others from being served; it is an error if none can be.
pub fn serve(config: Config, opener: FileOpener) -> Result<()> {
    open_files::raise_limit(config.disks.iter().map(|disk| u64::from(disk.queues)));
    memory_charge::prepare(&config.disks);
    let shared = Shared::new(opener, &config.daemon.shared, config.groups.all())?;
    run(config, shared).map_err(name_the_limit)
}

fn run(config: Config, shared: Shared) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])
        .map_err(|error| Error::host("signals", error, "free resources"))?;
    let start = Instant::now();
    let pollers = Pollers::new(&config.daemon.pollers)?;
    let (pollers, disks) = (Arc::new(pollers), Arc::<Disks>::default());
    let state = config.daemon.state_dir.as_deref().map(State::open).transpose()?;
    let plan = Plan::of(&config, state.as_ref(), &shared);
    for (name, error, origin) in plan.refused {
        error!("{error}");
        disks.refuse(name, &error, origin);
    }
    let listen = |path: &PathBuf| GuestAgents::start(path, config.daemon.access);
    let guests = config.daemon.guest_agent.as_ref().map(listen).transpose()?.map(Arc::new);
    let caches =
        Caches { cache: shared.cache.clone(), limits: shared.cache_limits, guests: guests.clone() };
    let resource_monitor = ResourceMonitor::start(caches, Arc::clone(&disks), start)
        .map_err(|error| Error::host("the resource monitor", error, "free resources"))?;
    let recordings = Places::default();
    let of_all = config.daemon;
    let daemon = Arc::new(Daemon {
        start,
        config: of_all,
        source: config.source,
        reloading: Mutex::default(),
        shared,
        pollers,
        disks,
        guests,
        resource_monitor,
        recordings,
        state,
        changes: Changes::default(),
    });
    // Names and sockets are reserved before a client can request one, and all disks are listed.
    let disks = daemon.begin(plan.disks);
    // Next: once a disk listens, a monitor may be served, and then it is too late to fail.
    let control = start_control(&daemon)?;
    let metrics = start_metrics(&daemon)?;
    let opener = daemon.open_beside(disks, control.announced, signals.handle())?;
    let Some(signal) = signals.forever().find(|signal| daemon.is_told_to_end(*signal)) else {
        // No disk can be served.
        return opener.join().unwrap_or_else(|_| Err(died("opening the disks")));
    };
    info!(signal, "stopping");
    drop((control.server, metrics));
    match daemon.stop() {
        Some(stopped) => stopped,
        None => opener.join().unwrap_or_else(|_| Err(died("opening the disks"))),
    }
}

#[derive(Default)]
struct Control {
    server: Option<ControlServer>,
    /// Path to print once it listens: of a daemon that may have no disk yet.
    announced: Option<PathBuf>,
}

/// Starts the control socket at the configured path, also from the environment; else at the default
/// path, if its folder exists and no other daemon listens there. A state directory requires a
/// control socket.
fn start_control(daemon: &Arc<Daemon>) -> Result<Control> {
    let variable = std::env::var_os(CONTROL_VARIABLE).filter(|value| !value.is_empty());
    let asked = daemon.config.control.clone().or_else(|| variable.map(PathBuf::from));
    let path = asked.clone().unwrap_or_else(|| CONTROL_DEFAULT.into());
    if asked.is_none() && daemon.state.is_none() && !path.parent().is_some_and(Path::is_dir) {
        return Ok(Control::default());
    }
    let (access, carrier) = (daemon.config.control_access.of_socket(), Arc::clone(daemon));
    let handler = Arc::new(move |command| carrier.execute(command));
    match ControlServer::start(&path, access, handler) {
        Ok(server) => {
            Ok(Control { server: Some(server), announced: daemon.state.is_some().then_some(path) })
        }
        Err(error) if asked.is_none() && daemon.state.is_none() => {
            info!("without a control socket: {error}");
            Ok(Control::default())
        }
        Err(error) => Err(error),
    }
}

fn start_metrics(daemon: &Arc<Daemon>) -> Result<Option<ControlServer>> {
    let Some(address) = &daemon.config.metrics_listen else { return Ok(None) };
    let (access, carrier) = (daemon.config.control_access.of_socket(), Arc::clone(daemon));
    let handler = Arc::new(move |command| carrier.execute(command));
    ControlServer::start_metrics(address, access, handler).map(Some)
}

/// The parent process may not read the output; the sockets work all the same.
fn say_listening(socket: &Path) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "listening on {}", socket.display());
    let _ = out.flush();
}

impl Daemon {
    /// Returns whether a signal ends the daemon. Closing a terminal must not, nor the signals that
    /// make other daemons rotate their logs and whose default action ends a process.
    fn is_told_to_end(self: &Arc<Self>, signal: i32) -> bool {
        let name = match signal {
            SIGHUP if self.source.is_some() => {
                let daemon = Arc::clone(self);
                let reload = move || {
                    if let Err(error) = daemon.reload() {
                        error!("{error}");
                    }
                };
                // Removing a disk may take long.
                if let Err(error) = Builder::new().name("reload".into()).spawn(reload) {
                    error!(%error, "cannot read the configuration again");
                }
                return false;
            }
            SIGHUP => "SIGHUP",
            SIGUSR1 => "SIGUSR1",
            SIGUSR2 => "SIGUSR2",
            _ => return true,
        };
        info!("{name} has no effect; SIGTERM stops the daemon");
        false
    }

    /// Prints that `control` listens and opens the disks, on another thread: this one has to
    /// receive signals. Closes `signals` if none can be served.
    fn open_beside(
        self: &Arc<Self>,
        begun: Vec<(u32, DiskConfig)>,
        control: Option<PathBuf>,
        signals: Handle,
    ) -> Result<JoinHandle<Result<()>>> {
        let daemon = Arc::clone(self);
        let open = move || {
            if let Some(control) = control {
                say_listening(&control);
            }
            let opened = daemon.open(begun);
            if opened.is_err() {
                signals.close();
            }
            opened
        };
        Builder::new()
            .name("open".into())
            .spawn(open)
            .map_err(|error| Error::host("opening the disks", error, "free resources"))
    }

    /// Registers the disks to open, except those that conflict with another one.
    fn begin(&self, configs: Vec<(DiskConfig, Origin)>) -> Vec<(u32, DiskConfig)> {
        let begin = |(config, origin): (DiskConfig, Origin)| match self.disks.begin(&config, origin)
        {
            Ok(Begun::Opens(number)) => Some((number, config)),
            Ok(Begun::IsThere) => None,
            Err(error) => {
                error!("{error}");
                self.disks.refuse(None, &error, origin);
                None
            }
        };
        configs.into_iter().filter_map(begin).collect()
    }

    /// Opens all disks in parallel: one may wait for a lock, or need a long recovery.
    fn open(self: &Arc<Self>, begun: Vec<(u32, DiskConfig)>) -> Result<()> {
        // The error of an only disk is printed by the caller, as the last line.
        let report = begun.len() > 1 || self.state.is_some();
        let (mut beside, mut left) = (Vec::new(), Vec::new());
        for (number, config) in begun {
            match self.open_on_a_thread(number, config.clone(), report) {
                Ok(thread) => beside.push(thread),
                Err(_) => left.push((number, config)),
            }
        }
        // Sequentially, for lack of threads.
        let open = |(number, config)| self.try_to_open(number, config, report);
        let mut ends: Vec<Result<()>> = left.into_iter().map(open).collect();
        let late = self.disks.wait_for_most(OPEN_PATIENCE).unwrap_or_default();
        if !late.is_empty() {
            warn!(disks = late.join(", "), "still being opened; the others are served");
            self.say_ready();
        }
        let end = |thread: JoinHandle<Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(died("opening a disk")))
        };
        ends.extend(beside.into_iter().map(end));
        match ends.into_iter().filter_map(Result::err).last() {
            Some(error) if self.state.is_none() && self.disks.end_if_empty() => return Err(error),
            Some(error) if !report => error!("{error}"),
            _ => {}
        }
        if late.is_empty() {
            self.say_ready();
        }
        Ok(())
    }

    fn open_on_a_thread(
        self: &Arc<Self>,
        number: u32,
        config: DiskConfig,
        report: bool,
    ) -> io::Result<JoinHandle<Result<()>>> {
        let (daemon, name) = (Arc::clone(self), format!("{}/open", config.name()));
        Builder::new().name(name).spawn(move || daemon.try_to_open(number, config, report))
    }

    /// Notifies the service manager, if there is one.
    fn say_ready(&self) {
        self.disks.unless_stopping(|| {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        });
    }

    /// Opens a disk and serves it. With `report`, logs a failure at once: other disks may take
    /// long.
    fn try_to_open(&self, number: u32, config: DiskConfig, report: bool) -> Result<()> {
        let name = config.name();
        let open = || self.open_disk(number, config).map_err(name_the_limit);
        self.disks.open(number, &name, open).inspect_err(|error| {
            if report {
                error!(disk = name, "{error}");
            }
        })
    }

    /// Builds the stack and starts to listen, unless the daemon is stopping.
    fn open_disk(&self, number: u32, config: DiskConfig) -> Result<()> {
        let group = config.beside.group.as_deref();
        let (name, progress) = (config.name(), self.disks.progress_of(number));
        let stack = Stack::build(&self.shared, number, &name, group, &config.stack, progress)?;
        if !self.disks.begin_start(number) {
            return Ok(());
        }
        let pollers = Arc::clone(&self.pollers);
        let disk = Disk::start(stack, number, config, pollers, &self.disks.events)?;
        let socket = disk.socket.clone();
        if let Err(late) = self.disks.serve(number, disk) {
            late.begin_stop();
            late.stop(Instant::now() + STOP_PATIENCE);
            return late.close();
        }
        say_listening(&socket);
        Ok(())
    }

    /// Stops every disk, whatever happens to the others, and returns the first error. `None` if the
    /// daemon has ended already, because no disk can be served.
    fn stop(&self) -> Option<Result<()>> {
        let disks = self.disks.stop()?;
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        disks.iter().for_each(|disk| disk.begin_stop());
        let deadline = Instant::now() + STOP_PATIENCE;
        let ends: Vec<_> = disks.into_iter().map(|disk| begin_to_end(disk, deadline)).collect();
        let mut outcome = Ok(());
        for end in ends {
            if let Err(error) = end() {
                error!("{error}");
                outcome = outcome.and(Err(error));
            }
        }
        Some(outcome.and(self.disks.wait_for_late_ones()))
    }
}

/// Begins to stop a disk on a separate thread. Returns what waits for its end, or stops the disk if
/// no thread could be started: after the others.
fn begin_to_end(disk: Arc<Disk>, deadline: Instant) -> Box<dyn FnOnce() -> Result<()>> {
    let theirs = Arc::clone(&disk);
    let stop = move || end(theirs, deadline);
    match Builder::new().name(format!("{}/stop", disk.name)).spawn(stop) {
        Ok(thread) => {
            Box::new(move || thread.join().unwrap_or_else(|_| Err(died("stopping a disk"))))
        }
        Err(_) => Box::new(move || end(disk, deadline)),
    }
}

/// Stops a disk and closes its image. The process may exit afterwards, so nothing else may be left
/// to close it.
fn end(disk: Arc<Disk>, deadline: Instant) -> Result<()> {
    disk.stop(deadline);
    let closes = mutated("daemon.stop.leaves-images-to-others", true, false);
    if !closes {
        return Ok(());
    }
    last_of(disk).close()
}

/// Adds the limit and its value to an error of "too many open files".
fn name_the_limit(error: Error) -> Error {
    let source = error.source();
    let errno = source.and_then(|why| match why.downcast_ref::<io::Error>() {
        Some(why) => Errno::from_io_error(why),
        None => why.downcast_ref::<Errno>().copied(),
    });
    match errno {
        Some(Errno::MFILE) => Error::host(error.what(), open_files::too_few(), open_files::ADVICE),
        _ => error,
    }
}
