//! The life of a daemon: open everything, say so, wait for a signal, let go of everything.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use flowstone_block::{Error, Result};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::{error, info};

use crate::config::Config;
use crate::control::{Command, ControlServer};
use crate::disk::Disk;
use crate::report::Report;

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
    let daemon =
        Arc::new(Daemon { start: Instant::now(), disks: Mutex::new(start_disks(config.disks)?) });
    let control = match &config.control {
        None => None,
        Some(path) => {
            let daemon = Arc::clone(&daemon);
            Some(ControlServer::start(path, Arc::new(move |command| daemon.execute(command)))?)
        }
    };
    daemon.announce();
    if let Some(signal) = signals.forever().next() {
        info!(signal, "stopping");
    }
    drop(control);
    daemon.stop()
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

    fn announce(&self) {
        let mut out = std::io::stdout().lock();
        for disk in self.disks().iter() {
            // Whoever started us may not be listening; the sockets work all the same.
            let _ = writeln!(out, "listening on {}", disk.socket.display());
        }
        let _ = out.flush();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }

    fn execute(&self, command: Command) -> std::result::Result<Value, String> {
        let disks = self.disks();
        match command {
            Command::Stats => {
                let report = Report::of(&disks, self.start.elapsed());
                serde_json::to_value(report).map_err(|error| error.to_string())
            }
            Command::Resize { disk: name, bytes } => {
                let disk = disks.iter().find(|disk| disk.is_called(&name));
                let disk = disk.ok_or_else(|| format!("no disk is called `{name}`"))?;
                let told = disk.grow(bytes).map_err(|error| error.to_string())?;
                Ok(json!({ "capacity_bytes": bytes, "guest_told": told }))
            }
        }
    }

    /// Stops every disk, whatever happens to the others; the first error is returned.
    fn stop(&self) -> Result<()> {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        let disks = std::mem::take(&mut *self.disks());
        let mut outcome = Ok(());
        for disk in disks {
            if let Err(error) = disk.stop() {
                error!("{error}");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }
}
