//! Reload of the configuration: applies what can change while guests run, and lists the rest.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use flowstone_block::{Error, Result};
use flowstone_control::{DiskChange, DiskWord, Origin};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::{error, info, warn};

use super::Daemon;
use super::changes::InOrder;
use crate::config::{Config, DiskConfig, Keys};
use crate::disks::{Begun, Leaving, Removal};
use crate::state::Subject;

/// Keys that can change while a guest runs.
const LIVE: [&str; 2] = ["limit", "weight"];
/// Keys that can change if the new value is given explicitly.
const ACCESS: [&str; 2] = ["socket-group", "socket-mode"];
/// Reason for leaving a disk or group unchanged.
pub(super) const ADDED: &str = "it was added on the control socket";
/// Reason why a disk still exists.
pub(super) const LEAVING: &str = "it is being removed, and its host has not answered yet";

/// Time that a reload waits for the disks that it removes before it adds those that have nothing in
/// common with them.
const SHORT_PATIENCE: Duration = Duration::from_secs(1);
/// Time that a reload, or a second removal, waits for a disk that leaves.
pub(super) const REMOVAL_PATIENCE: Duration = Duration::from_secs(10);

/// Result of a reload.
#[derive(Debug, Default, Serialize)]
pub(super) struct Reloaded {
    pub added: Vec<String>,
    pub removed: Vec<String>,
    pub changed: Vec<String>,
    /// Disks with changed keys that take effect when the disk is served again.
    needs_restart: Vec<String>,
    /// Disks and groups that are no longer configured, with the reason why they still exist.
    pub kept: Vec<String>,
    /// Configured disks and groups that cannot exist.
    pub refused: Vec<String>,
}

/// A disk that leaves.
enum Leaves {
    /// Its thread tells when it has gone.
    Ours(Receiver<Result<()>>),
    /// Another thread stops it.
    Others(Leaving),
}

impl Daemon {
    /// Reloads the configuration; changes nothing if it cannot be read.
    pub(super) fn reload(self: &Arc<Self>) -> Result<Value> {
        let Some((path, typed)) = &self.source else {
            let why = "the daemon was started without --config";
            return Err(Error::unsupported("reload", why, "use `flowstone disk`"));
        };
        let _alone = match self.reloading.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let why = "the configuration is being reloaded";
                return Err(Error::busy("reload", why, "try again later"));
            }
        };
        let config = Config::read(path, typed)?;
        let mut done = Reloaded::default();
        done.refused.extend(config.refused.iter().map(ToString::to_string));
        self.reload_groups(&config, &mut done)?;
        let (before, stopping) = (self.disks.written(), self.disks.stopping());
        let names: BTreeSet<String> = config.disks.iter().map(DiskConfig::name).collect();
        let mut leaving = Vec::new();
        for (name, (origin, keys)) in &before {
            // A disk configured with an error is not a removed one.
            let is_there = names.contains(name) || config.refuses(name, keys);
            if *origin == Origin::File && !is_there {
                match self.remove_beside(name) {
                    Ok(gone) => leaving.push((name.clone(), gone)),
                    Err(error) => done.kept.push(format!("{name}: {error}")),
                }
            }
        }
        for disk in &config.disks {
            let name = disk.name();
            match before.get(&name) {
                Some((Origin::Api, _)) => {
                    done.kept.push(format!("{name}: {ADDED}"));
                }
                Some(_) if stopping.contains(&name) => {}
                Some((Origin::File, keys)) => self.reload_disk(disk, keys, &mut done),
                None => {}
            }
        }
        // What is stopping since an earlier reload is refused by name if it still is.
        let is_new = |name: String| !before.contains_key(&name) || stopping.contains(&name);
        let new = config.disks.iter().filter(|disk| is_new(disk.name())).collect();
        self.replace_disks(leaving, new, &mut done);
        self.reload_gone_groups(&config, &mut done);
        info!("read again: {}", json!(done));
        Ok(json!(done))
    }

    /// Adds disks, each when those that leave have gone, or after a while.
    fn replace_disks(
        self: &Arc<Self>,
        leaving: Vec<(String, Leaves)>,
        new: Vec<&DiskConfig>,
        done: &mut Reloaded,
    ) {
        let began = Instant::now();
        let leaving = self.wait_for_removals(leaving, began + SHORT_PATIENCE, done);
        let replaces = |disk: &&DiskConfig| self.disks.replaces_one_that_leaves(disk);
        let (replacing, others): (Vec<_>, Vec<_>) = new.into_iter().partition(replaces);
        self.reload_new(&others, done);
        for (name, _) in self.wait_for_removals(leaving, began + REMOVAL_PATIENCE, done) {
            warn!(disk = name, "{LEAVING}");
            done.kept.push(format!("{name}: {LEAVING}"));
        }
        self.reload_new(&replacing, done);
    }

    /// Returns the removals that have not ended by then.
    fn wait_for_removals(
        &self,
        mut leaving: Vec<(String, Leaves)>,
        until: Instant,
        done: &mut Reloaded,
    ) -> Vec<(String, Leaves)> {
        leaving.retain(|(name, leaves)| match self.wait_for_removal(leaves, until) {
            Some(Ok(())) => {
                done.removed.push(name.clone());
                false
            }
            Some(Err(error)) => {
                done.kept.push(format!("{name}: {error}"));
                false
            }
            None => true,
        });
        leaving
    }

    /// Removes a disk on a thread of its own: its host may hang.
    fn remove_beside(self: &Arc<Self>, name: &str) -> Result<Leaves> {
        let ((tell, told), (give, given)) = (sync_channel(1), sync_channel(1));
        let (daemon, its) = (Arc::clone(self), name.to_owned());
        let end = move || {
            if let Ok(removal) = given.recv() {
                let _ = tell.send(daemon.end_removal(&its, removal));
            }
        };
        // First: without it the disk would be stopping for ever.
        let thread = thread::Builder::new().name("removal".into()).spawn(end);
        thread.map_err(|error| Error::host("the thread of a removal", error, "try again later"))?;
        match self.begin_removal(name, false).map_err(|refused| refused.error)? {
            Removal::Wait(leaving) => Ok(Leaves::Others(leaving)),
            removal => {
                give.send(removal).expect("the thread waits for it");
                Ok(Leaves::Ours(told))
            }
        }
    }

    /// Returns how the removal ended, if it has by then.
    fn wait_for_removal(&self, leaves: &Leaves, until: Instant) -> Option<Result<()>> {
        match leaves {
            Leaves::Others(leaving) => self.disks.gone_by(*leaving, until),
            Leaves::Ours(told) => {
                let left = until.saturating_duration_since(Instant::now());
                match told.recv_timeout(left) {
                    Ok(ended) => Some(ended),
                    Err(RecvTimeoutError::Timeout) => None,
                    // Its thread has panicked, and it has gone all the same.
                    Err(RecvTimeoutError::Disconnected) => Some(Ok(())),
                }
            }
        }
    }

    fn reload_new(self: &Arc<Self>, disks: &[&DiskConfig], done: &mut Reloaded) {
        for disk in disks {
            let name = disk.name();
            let begun = self.disks.begin(disk, Origin::File).and_then(|begun| match begun {
                Begun::IsThere => Ok(()),
                Begun::Opens(number) => self.open_added(&name, number, (*disk).clone()),
            });
            match begun {
                Ok(()) => {
                    info!(disk = name, "added");
                    done.added.push(name);
                }
                Err(error) => done.refused.push(error.to_string()),
            }
        }
    }

    fn reload_disk(&self, disk: &DiskConfig, before: &Keys, done: &mut Reloaded) {
        let name = disk.name();
        let keys: BTreeSet<&String> = before.keys().chain(disk.keys.keys()).collect();
        let differ = keys.into_iter().filter(|key| before.get(*key) != disk.keys.get(*key));
        let access = disk.beside.access;
        // The access that the system gave the socket at first is not known any more.
        let is_said =
            access.group.is_some() || (access.mode.is_some() && !before.contains_key(ACCESS[0]));
        let is_live = |key: &str| LIVE.contains(&key) || (is_said && ACCESS.contains(&key));
        let (live, others): (Vec<_>, Vec<_>) = differ.partition(|key| is_live(key));
        if !others.is_empty() {
            let keys: Vec<&str> = others.iter().map(|key| key.as_str()).collect();
            done.needs_restart.push(format!("{name}: {}", keys.join(", ")));
        }
        if live.is_empty() {
            return;
        }
        let share = disk.stack.share;
        let has = |key: &str| live.iter().any(|it| *it == key);
        let change = DiskChange {
            size: None,
            limit: has("limit").then(|| share.limit.unwrap_or_default().to_string()),
            weight: has("weight").then(|| share.weight.unwrap_or_default().get()),
        };
        let word = DiskWord { name: name.clone(), path: None };
        let found = self.disks.find("reload", &word).map_err(|refused| refused.error);
        let changed = found.and_then(|found| {
            if ACCESS.into_iter().any(has) {
                found.set_access(access)?;
            }
            // Until what was set by hand is forgotten: else the change of a client could come in
            // between, be answered, and be forgotten.
            let in_order = self.changes.begin()?;
            found.change(&change, |_| Ok(()))?;
            Ok(in_order)
        });
        match changed {
            Err(error) => done.refused.push(error.to_string()),
            Ok(in_order) => {
                let mut keys = before.clone();
                for key in live {
                    match disk.keys.get(key) {
                        Some(value) => keys.insert(key.clone(), value.clone()),
                        None => keys.remove(key),
                    };
                    done.changed.push(format!("{name}: {key}"));
                    self.forget(&in_order, Subject::Disk(name.clone()), key);
                }
                self.disks.rewrite(&name, &keys);
            }
        }
    }

    /// Drops the persisted setting of a key.
    pub(super) fn forget(&self, in_order: &InOrder<'_>, subject: Subject, key: &str) {
        let forgotten = self.keep(in_order, subject, |record| record.forget(key));
        forgotten.unwrap_or_else(|error| error!("{error}"));
    }
}
