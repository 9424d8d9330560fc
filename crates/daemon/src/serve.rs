//! The life of a daemon: open everything, say so, wait for a signal, let go of everything.
//!
//! No disk waits for another one: commands take the list of disks and let go of its lock, and at
//! the end all disks stop side by side, each flushed and let go as soon as it can.

use std::error::Error as _;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use flowstone_block::{Errno, Error, Result, SizeChange};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tracing::{error, info};

use crate::config::{Config, DiskConfig};
use crate::control::{Command, ControlServer};
use crate::disk::Disk;
use crate::open_files;
use crate::report::Report;

/// How long monitors may take to let go of a daemon that stops.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// What is being served.
struct Daemon {
    start: Instant,
    disks: Mutex<Disks>,
}

#[derive(Default)]
struct Disks {
    served: Vec<Arc<Disk>>,
    /// Disks that are opened from now on are too late.
    stopping: bool,
}

/// Serves all disks of `config` until SIGTERM or SIGINT. Prints `listening on PATH` for each disk
/// that is ready. A disk that cannot be served is reported and does not keep the others from
/// being served; if none can be, that is an error.
pub fn serve(config: Config) -> Result<()> {
    open_files::raise_limit(&config.disks);
    run(config).map_err(name_the_limit)
}

fn run(config: Config) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| Error::host("signals", error, "free resources"))?;
    let daemon = Arc::new(Daemon { start: Instant::now(), disks: Mutex::default() });
    // First: once a disk listens, a monitor may be served, and then it is too late to fail.
    let control = match &config.control {
        None => None,
        Some(path) => Some(start_control(path, &daemon)?),
    };
    let opener = daemon.open_beside(config.disks, signals.handle())?;
    let Some(signal) = signals.forever().find(|signal| is_the_end(*signal)) else {
        // Nothing can be served.
        return opener.join().unwrap_or_else(|_| Err(died("opening the disks")));
    };
    info!(signal, "stopping");
    drop(control);
    daemon.stop()
}

/// SIGHUP ends nothing: a terminal that closes must not take guests' disks away, and there is nothing
/// to read again.
fn is_the_end(signal: i32) -> bool {
    if signal == SIGHUP {
        info!("SIGHUP has no effect; SIGTERM stops the daemon");
    }
    signal != SIGHUP
}

fn start_control(path: &Path, daemon: &Arc<Daemon>) -> Result<ControlServer> {
    let daemon = Arc::clone(daemon);
    ControlServer::start(path, Arc::new(move |command| daemon.execute(command)))
}

fn died(what: &str) -> Error {
    Error::host(what, "its thread has panicked", "report this as a defect")
}

impl Daemon {
    fn disks(&self) -> MutexGuard<'_, Disks> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the disks on a thread of its own: one may wait for a lock, or be recovered for a long
    /// time, and a signal must be heard meanwhile. Closes `signals` if none can be served.
    fn open_beside(
        self: &Arc<Self>,
        configs: Vec<DiskConfig>,
        signals: Handle,
    ) -> Result<JoinHandle<Result<()>>> {
        let daemon = Arc::clone(self);
        let open = move || {
            let opened = daemon.open(configs);
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

    fn open(&self, configs: Vec<DiskConfig>) -> Result<()> {
        let mut failure = None;
        let count = configs.len();
        for (number, config) in (0..).zip(configs) {
            match Disk::start(number, config).map_err(name_the_limit) {
                Ok(disk) => self.add(Arc::new(disk)),
                Err(error) => {
                    if count > 1 {
                        error!("{error}");
                    }
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) if self.serves_nothing() => Err(error),
            _ => {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
                Ok(())
            }
        }
    }

    fn serves_nothing(&self) -> bool {
        let disks = self.disks();
        disks.served.is_empty() && !disks.stopping
    }

    /// Serves one more disk, unless the daemon is stopping.
    fn add(&self, disk: Arc<Disk>) {
        let mut disks = self.disks();
        if disks.stopping {
            disk.begin_stop();
            return;
        }
        let socket = disk.socket.display().to_string();
        disks.served.push(disk);
        drop(disks);
        let mut out = io::stdout().lock();
        // The process that started us may not listen; the sockets work all the same.
        let _ = writeln!(out, "listening on {socket}");
        let _ = out.flush();
    }

    fn execute(&self, command: Command) -> Result<Value> {
        match command {
            Command::Stats => {
                let disks = self.disks().served.clone();
                let report = Report::of(&disks, self.start.elapsed());
                Ok(serde_json::to_value(report).expect("a report is plain values"))
            }
            Command::Resize { disk: name, path, bytes, add_bytes } => {
                let change = size_change(&name, bytes, add_bytes)?;
                // It may take for ever, and nothing but that disk may wait for it.
                let disk = find(&self.disks().served, &name, path.as_deref())?;
                let (capacity, told) = disk.grow(change)?;
                Ok(json!({ "capacity_bytes": capacity.bytes(), "guest_told": told }))
            }
        }
    }

    /// Stops every disk, whatever happens to the others; the first error is returned.
    fn stop(&self) -> Result<()> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let disks = {
            let mut disks = self.disks();
            disks.stopping = true;
            std::mem::take(&mut disks.served)
        };
        disks.iter().for_each(|disk| disk.begin_stop());
        let deadline = Instant::now() + STOP_PATIENCE;
        let stops: Vec<Stop> = disks.into_iter().map(|disk| Stop::begin(disk, deadline)).collect();
        let mut outcome = Ok(());
        for stop in stops {
            if let Err(error) = stop.end(deadline) {
                error!("{error}");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}

/// A disk on its way out.
enum Stop {
    /// On a thread of its own.
    Beside(JoinHandle<Result<()>>),
    /// There was no thread to be had: after the others.
    Later(Arc<Disk>),
}

impl Stop {
    fn begin(disk: Arc<Disk>, deadline: Instant) -> Self {
        let theirs = Arc::clone(&disk);
        let stop = move || theirs.stop(deadline);
        match Builder::new().name(format!("{}/stop", disk.name)).spawn(stop) {
            Ok(thread) => Self::Beside(thread),
            Err(_) => Self::Later(disk),
        }
    }

    fn end(self, deadline: Instant) -> Result<()> {
        match self {
            Self::Beside(thread) => thread.join().unwrap_or_else(|_| Err(died("stopping a disk"))),
            Self::Later(disk) => disk.stop(deadline),
        }
    }
}

/// What a `resize` command asks for.
fn size_change(name: &str, bytes: Option<u64>, add_bytes: Option<u64>) -> Result<SizeChange> {
    match (bytes, add_bytes) {
        (Some(bytes), None) => Ok(SizeChange::To(bytes)),
        (None, Some(bytes)) => Ok(SizeChange::Grow(bytes)),
        _ => {
            let why = "it needs the new size or the difference";
            Err(Error::invalid(format!("resize {name}"), why, "send either bytes or add_bytes"))
        }
    }
}

/// An operator who reads "too many open files" has to learn which limit, and how high it is.
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

/// The one disk that an operator means. A disk that grew by mistake cannot be shrunk again, so a
/// word that fits two is refused.
fn find(disks: &[Arc<Disk>], name: &str, path: Option<&Path>) -> Result<Arc<Disk>> {
    let path = path.unwrap_or(Path::new(name));
    let mut called = disks.iter().filter(|disk| disk.is_called(name, path));
    let refuse = |why, advice| Error::invalid(format!("resize {name}"), why, advice);
    match (called.next(), called.next()) {
        (Some(disk), None) => Ok(Arc::clone(disk)),
        (None, _) => Err(refuse("no disk is called that", "see `flowstone stats` for the names")),
        _ => Err(refuse("two disks are called that", "give the whole path of the image")),
    }
}
