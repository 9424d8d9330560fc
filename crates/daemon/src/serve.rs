//! The life of a daemon: open everything, say so, wait for a signal, let go of everything.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};

use crate::config::Config;
use crate::control::{Command, ControlServer};
use crate::disk::Disk;
use crate::report::Report;

/// How long monitors may take to let go of a daemon that stops.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// The disks that are being served; empty once the daemon is stopping.
struct Daemon {
    start: Instant,
    disks: Mutex<Vec<Disk>>,
}

/// Serves all disks of `config` until SIGTERM or SIGINT. Prints `listening on PATH` for each disk
/// that is ready. A disk that cannot be served is reported and does not keep the others from
/// being served; if none can be, that is an error.
pub fn serve(config: Config) -> Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])
        .map_err(|error| Error::host("signals", error, "free resources"))?;
    let daemon = Arc::new(Daemon { start: Instant::now(), disks: Mutex::default() });
    // First: once a disk listens, a monitor may be served, and then it is too late to fail.
    let control = match &config.control {
        None => None,
        Some(path) => Some(start_control(path, &daemon)?),
    };
    daemon.open(config.disks)?;
    daemon.announce();
    if let Some(signal) = signals.forever().next() {
        info!(signal, "stopping");
    }
    drop(control);
    daemon.stop()
}

fn start_control(path: &Path, daemon: &Arc<Daemon>) -> Result<ControlServer> {
    let daemon = Arc::clone(daemon);
    ControlServer::start(path, Arc::new(move |command| daemon.execute(command)))
}

fn start_disks(configs: Vec<crate::DiskConfig>) -> Result<Vec<Disk>> {
    let mut disks = Vec::new();
    let mut failure = None;
    let count = configs.len();
    for config in configs {
        match Disk::start(config) {
            Ok(disk) => disks.push(disk),
            Err(error) if count == 1 => return Err(error),
            Err(error) => {
                error!("{error}");
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if disks.is_empty() => Err(error),
        _ => Ok(disks),
    }
}

impl Daemon {
    fn disks(&self) -> MutexGuard<'_, Vec<Disk>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the disks; commands wait until all of them are there.
    fn open(&self, configs: Vec<crate::DiskConfig>) -> Result<()> {
        let mut disks = self.disks();
        *disks = start_disks(configs)?;
        Ok(())
    }

    fn announce(&self) {
        let mut out = std::io::stdout().lock();
        for disk in self.disks().iter() {
            // Whoever started us may not be listening; the sockets work all the same.
            let _ = writeln!(out, "listening on {}", disk.socket.display());
        }
        let _ = out.flush();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }

    fn execute(&self, command: Command) -> Result<Value> {
        let disks = self.disks();
        match command {
            Command::Stats => {
                let report = Report::of(&disks, self.start.elapsed());
                Ok(serde_json::to_value(report).expect("a report is plain values"))
            }
            Command::Resize { disk: name, path, bytes } => {
                let told = find(&disks, &name, path.as_deref())?.grow(bytes)?;
                Ok(json!({ "capacity_bytes": bytes, "guest_told": told }))
            }
        }
    }

    /// Stops every disk, whatever happens to the others; the first error is returned.
    fn stop(&self) -> Result<()> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let disks = std::mem::take(&mut *self.disks());
        // All at once, so that one slow disk does not keep the others in use.
        disks.iter().for_each(Disk::begin_stop);
        let deadline = Instant::now() + STOP_PATIENCE;
        let mut outcome = Ok(());
        for disk in disks {
            if let Err(error) = disk.stop(deadline) {
                error!("{error}");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}

/// The one disk that an operator means. A disk that grew by mistake cannot be shrunk again, so a
/// word that fits two is refused.
fn find<'a>(disks: &'a [Disk], name: &str, path: Option<&Path>) -> Result<&'a Disk> {
    let path = path.unwrap_or(Path::new(name));
    let mut called = disks.iter().filter(|disk| disk.is_called(name, path));
    let refuse = |why, advice| Error::invalid(format!("resize {name}"), why, advice);
    match (called.next(), called.next()) {
        (Some(disk), None) => Ok(disk),
        (None, _) => Err(refuse("no disk is called that", "see `flowstone stats` for the names")),
        _ => Err(refuse("two disks are called that", "give the whole path of the image")),
    }
}
