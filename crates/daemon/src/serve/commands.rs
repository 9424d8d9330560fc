//! Runs the commands of control clients. No lock is held across work.

use std::sync::Arc;
use std::time::Instant;

use flowstone_block::Error;
use flowstone_control::{Answer, Command, DiskChange, DiskWord, Event, OPENAPI, Origin, Refused};
use serde::Serialize;
use serde_json::{Value, json};
use toml::Table;
use tracing::{error, info};

use super::changes::InOrder;
use super::reload::{LEAVING, REMOVAL_PATIENCE};
use super::{Daemon, STOP_PATIENCE};
use crate::cache_report::CacheReport;
use crate::config::{DiskConfig, DiskTable, table_of};
use crate::disk::Disk;
use crate::disks::{Begun, Removal};
use crate::numa_report::NumaReport;
use crate::qos_control::NewShare;
use crate::report::Report;
use crate::state::{Record, Subject};
use crate::{metrics, recording};

impl Daemon {
    pub(super) fn execute(self: &Arc<Self>, command: Command) -> Result<Answer, Refused> {
        match command {
            Command::Stats { buckets } => Ok(answer(self.report(buckets))),
            Command::OpenApi => Ok(Answer::Text("application/json", OPENAPI.into())),
            Command::Events => Ok(Answer::Events(self.disks.events.listen())),
            Command::Reload => Ok(self.reload()?.into()),
            Command::Metrics => Ok(self.metrics()),
            Command::Numa => Ok(answer(NumaReport::of(&self.disks.serving(), &self.pollers))),
            Command::Layout(disk) => Ok(self.disks.find("layout of", &disk)?.stack.layout().into()),
            Command::Disks => Ok(answer(self.disks.list())),
            Command::Show(name) => Ok(self.show(&name)?.into()),
            Command::Add(name, table) => self.add(&name, table),
            Command::Remove { name, force } => self.remove(&name, force),
            Command::Change(disk, change) => self.change(&disk, &change),
            Command::Record { disk, coarse } => {
                let disk = self.disks.find("record", &disk)?;
                Ok(recording::begin(&self.recordings, disk, coarse)?)
            }
            Command::Groups => Ok(self.list_groups().into()),
            Command::AddGroup(name, table) => self.add_group(&name, table),
            Command::RemoveGroup(name) => self.remove_group(&name),
            Command::SetGroup { group, limit } => self.set_group(&group, &limit),
        }
    }

    fn report(&self, buckets: bool) -> Report {
        let cache = self.shared.cache.as_deref();
        let cache = cache.map(|cache| CacheReport::of(cache, &self.resource_monitor));
        let (pollers, groups) = (self.pollers.report(), json!(self.shared.groups.report()));
        let heard = self.guests.as_ref().map(|guests| guests.heard()).unwrap_or_default();
        let how = (self.start.elapsed(), buckets);
        Report::of(&self.disks, cache, &heard, pollers, groups, how)
    }

    fn change(&self, disk: &DiskWord, change: &DiskChange) -> Result<Answer, Refused> {
        let what = if change.size.is_some() { "resize" } else { "disk set" };
        let disk = self.disks.find(what, disk).or_else(|refused| {
            self.check_kept(&Subject::Disk(disk.name.clone()))?;
            Err(refused)
        })?;
        let before = disk.shared.capacity();
        // It may never return, and only this disk may wait for it.
        let changed = disk.change(change, |share| self.keep_share(&disk, *share));
        let capacity = disk.shared.capacity();
        if capacity != before {
            let capacity_bytes = capacity.bytes();
            self.disks.events.tell(&disk.name, Event::Resized { capacity_bytes });
        }
        Ok(changed?.into())
    }

    pub(super) fn metrics(&self) -> Answer {
        let cache = self.shared.cache.as_deref();
        let text = metrics::text(&self.disks, cache, self.config.metrics_buckets);
        Answer::Text(metrics::CONTENT_TYPE, text)
    }

    fn show(&self, name: &str) -> Result<Value, Refused> {
        let mut shown = self.disks.show(name).ok_or_else(|| {
            let advice = "see `flowstone disk list` for the names";
            let what = format!("disk {name}");
            Refused::unknown(Error::invalid(what, "no disk is called that", advice))
        })?;
        let record = self.state.as_ref().and_then(|it| it.get(&Subject::Disk(name.to_owned())));
        for (key, value) in record.unwrap_or_default().set {
            shown["keys"][key] = json!({ "value": value, "origin": Origin::Api });
        }
        Ok(shown)
    }

    /// Adds a disk. Its name and socket are reserved when this returns; its image is opened on
    /// another thread.
    fn add(self: &Arc<Self>, name: &str, table: Table) -> Result<Answer, Refused> {
        let config = self.config.disk(name, table)?;
        let added = table_of::<DiskTable>(&config.keys);
        let in_order = self.changes.begin()?;
        self.check_kept(&Subject::Disk(name.to_owned()))?;
        if let Some(group) = &config.beside.group
            && self.shared.groups.get(group).is_none()
        {
            let why = format!("there is no group called `{group}`");
            let what = format!("disk {name}");
            return Err(Error::invalid(what, why, "leave `group` out, or name another").into());
        }
        match self.disks.begin(&config, Origin::Api)? {
            Begun::IsThere => Ok(self.show(name)?.into()),
            Begun::Opens(number) => {
                let keep = |record: &mut Record| record.begin(Some(added));
                if let Err(error) = self.keep(&in_order, Subject::Disk(name.to_owned()), keep) {
                    self.disks.give_up(number);
                    return Err(error.into());
                }
                drop(in_order);
                info!(disk = name, "added");
                self.open_added(name, number, config)?;
                Ok(Answer::Begun(self.show(name)?))
            }
        }
    }

    /// Opens a disk, whose name and socket are reserved, on another thread.
    pub(super) fn open_added(
        self: &Arc<Self>,
        name: &str,
        number: u32,
        config: DiskConfig,
    ) -> flowstone_block::Result<()> {
        let Err(error) = self.open_on_a_thread(number, config, true) else { return Ok(()) };
        let error = Error::host(format!("disk {name}"), error, "free resources");
        // Marks the disk as failed.
        self.disks.open(number, name, || Err(error))
    }

    /// Refuses a subject with several files in the state directory.
    pub(super) fn check_kept(&self, subject: &Subject) -> flowstone_block::Result<()> {
        self.state.as_ref().map_or(Ok(()), |state| state.check(subject))
    }

    /// Persists a change that is being made, if there is a state directory.
    pub(super) fn keep(
        &self,
        _in_order: &InOrder<'_>,
        subject: Subject,
        change: impl FnOnce(&mut Record),
    ) -> flowstone_block::Result<()> {
        self.state.as_ref().map_or(Ok(()), |state| state.change(subject, change))
    }

    /// Persists the share set for a disk that still exists. Other changes wait until the returned
    /// guard is dropped.
    fn keep_share(
        &self,
        disk: &Arc<Disk>,
        share: NewShare,
    ) -> flowstone_block::Result<InOrder<'_>> {
        let in_order = self.changes.begin()?;
        if !self.disks.serving().iter().any(|it| Arc::ptr_eq(it, disk)) {
            let what = format!("disk set {}", disk.name);
            return Err(Error::busy(what, "it is being removed", "see `flowstone disk list`"));
        }
        if share.limit.is_some() || share.weight.is_some() {
            let written = self.disks.keys_of(&disk.name);
            let was = |key: &str| written.get(key).map(|values| values.join(","));
            self.keep(&in_order, Subject::Disk(disk.name.clone()), |record| {
                if let Some(limit) = share.limit {
                    record.set("limit", limit.to_string(), was("limit"));
                }
                if let Some(weight) = share.weight {
                    record.set("weight", weight.to_string(), was("weight"));
                }
            })?;
        }
        Ok(in_order)
    }

    /// Removes a disk. When this returns its socket is gone and its image is closed.
    fn remove(&self, name: &str, force: bool) -> Result<Answer, Refused> {
        let removal = self.begin_removal(name, force)?;
        self.end_removal(name, removal)?;
        Ok(json!({ "name": name, "removed": true }).into())
    }

    /// Begins the removal of a disk; waits for no disk.
    pub(super) fn begin_removal(&self, name: &str, force: bool) -> Result<Removal, Refused> {
        let in_order = self.changes.begin()?;
        let subject = Subject::Disk(name.to_owned());
        self.check_kept(&subject)?;
        self.disks.check_removal(name, force)?;
        // First: a record that cannot be removed would bring the disk back after a restart.
        let before = self.state.as_ref().and_then(|state| state.get(&subject));
        self.keep(&in_order, subject.clone(), |record| record.begin(None))?;
        self.disks.begin_removal(name, force).inspect_err(|_| {
            // A guest has connected meanwhile.
            let Some(before) = before else { return };
            let kept = self.keep(&in_order, subject, |record| *record = before);
            kept.unwrap_or_else(|error| error!("{error}"));
        })
    }

    /// Waits until a disk is gone: for as long as its host takes, if this stops it.
    pub(super) fn end_removal(&self, name: &str, removal: Removal) -> flowstone_block::Result<()> {
        let outcome = match removal {
            Removal::Done => Ok(()),
            Removal::Wait(leaving) => {
                // It has a place of the control socket, beside the one of the thread that stops it.
                let Some(ended) = self.disks.gone_by(leaving, Instant::now() + REMOVAL_PATIENCE)
                else {
                    let what = format!("disk remove {name}");
                    return Err(Error::busy(what, LEAVING, "try again later"));
                };
                ended
            }
            Removal::Stop(number, disk) => {
                disk.begin_stop();
                let deadline = Instant::now() + STOP_PATIENCE;
                self.disks.end(number, disk, |disk| disk.stop(deadline), Disk::close)
            }
        };
        match &outcome {
            Ok(()) => info!(disk = name, "removed"),
            Err(error) => error!(disk = name, "removed: {error}"),
        }
        outcome
    }
}

/// Writes a report without a tree of it: `stats` of many disks has tens of thousands of values.
fn answer(report: impl Serialize) -> Answer {
    let text = serde_json::to_string(&report).expect("a report is plain values");
    Answer::Text("application/json", text + "\n")
}
