//! Adding, changing and removing groups while disks are served.

use flowstone_block::Error;
use flowstone_control::{Answer, Origin, Refused};
use flowstone_qos::{Group, Limit};
use serde_json::{Value, json};
use toml::Table;
use tracing::{info, warn};

use super::Daemon;
use super::changes::InOrder;
use super::plan::Plan;
use super::reload::{ADDED, Reloaded};
use crate::config::{Config, limit_of_group};
use crate::stack::Shared;
use crate::state::{Record, State, Subject};

impl Daemon {
    pub(super) fn list_groups(&self) -> Value {
        let mut all = self.shared.groups.list();
        for listed in &mut all {
            listed.disks = self.disks.of_group(listed.group.name());
        }
        json!(all)
    }

    fn group(&self, name: &str) -> Value {
        let all = self.list_groups();
        let mut all = all.as_array().into_iter().flatten();
        all.find(|group| group["name"] == name).cloned().unwrap_or_default()
    }

    /// Adds a group with the keys of a `[[group]]`.
    pub(super) fn add_group(&self, name: &str, table: Table) -> Result<Answer, Refused> {
        let limit = limit_of_group(name, table)?;
        let in_order = self.changes.begin()?;
        self.check_kept(&Subject::Group(name.to_owned()))?;
        if self.shared.groups.add(name, limit, Origin::Api)? {
            let added: Table =
                [("limit".to_owned(), limit.to_string().into())].into_iter().collect();
            let keep = |record: &mut Record| record.begin(Some(added));
            if let Err(error) = self.keep(&in_order, Subject::Group(name.to_owned()), keep) {
                self.shared.groups.remove(name);
                return Err(error.into());
            }
            info!(group = name, "added");
        } else if let Some(group) = self.shared.groups.get(name) {
            // Replaces a limit set since.
            if group.limit() != limit {
                self.set_limit(&in_order, name, &group, limit)?;
            }
        }
        Ok(self.group(name).into())
    }

    /// Removes a group that has no disks.
    pub(super) fn remove_group(&self, name: &str) -> Result<Answer, Refused> {
        let what = || format!("group remove {name}");
        let in_order = self.changes.begin()?;
        self.check_kept(&Subject::Group(name.to_owned()))?;
        if self.shared.groups.get(name).is_none() {
            return Err(unknown(what()));
        }
        let disks = self.disks.of_group(name);
        if let Some(disk) = disks.first() {
            let why = match disks.len() {
                1 => format!("disk {disk} is in it"),
                count => format!("disk {disk} and {} more are in it", count - 1),
            };
            return Err(Error::busy(what(), why, "remove its disks first").into());
        }
        self.keep(&in_order, Subject::Group(name.to_owned()), |record| record.begin(None))?;
        self.shared.groups.remove(name);
        info!(group = name, "removed");
        Ok(json!({ "name": name, "removed": true }).into())
    }

    /// Changes the limit of a group.
    pub(super) fn set_group(&self, name: &str, limit: &str) -> Result<Answer, Refused> {
        let what = || format!("group set {name}");
        let refuse = |why: String| Error::invalid(what(), why, "see `flowstone help group set`");
        let limit: Limit = limit.parse().map_err(refuse)?;
        let in_order = self.changes.begin()?;
        self.check_kept(&Subject::Group(name.to_owned()))?;
        let group = self.shared.groups.get(name).ok_or_else(|| unknown(what()))?;
        self.set_limit(&in_order, name, &group, limit)?;
        Ok(self.group(name).into())
    }

    /// Persists a limit, then sets it.
    fn set_limit(
        &self,
        in_order: &InOrder<'_>,
        name: &str,
        group: &Group,
        limit: Limit,
    ) -> flowstone_block::Result<()> {
        let written = self.shared.groups.written().remove(name);
        let was = written.filter(|(origin, _)| *origin == Origin::File);
        // First: a limit that cannot be persisted is not set.
        self.keep(in_order, Subject::Group(name.to_owned()), |record| {
            record.set("limit", limit.to_string(), was.map(|(_, limit)| limit.to_string()));
        })?;
        group.set_limit(limit);
        Ok(())
    }

    /// Adds new groups of the configuration, and sets limits that it has changed.
    pub(super) fn reload_groups(
        &self,
        config: &Config,
        done: &mut Reloaded,
    ) -> flowstone_block::Result<()> {
        let in_order = self.changes.begin()?;
        let before = self.shared.groups.written();
        for group in config.groups.all() {
            let (name, title) = (&group.name, format!("group {}", group.name));
            // It has been validated.
            let Ok(limit) = group.together.limit() else { continue };
            match before.get(name) {
                None => match self.shared.groups.add(name, limit, Origin::File) {
                    Ok(_) => done.added.push(title),
                    Err(error) => done.refused.push(error.to_string()),
                },
                Some((Origin::Api, _)) => done.kept.push(format!("{title}: {ADDED}")),
                Some((Origin::File, was)) if *was != limit => {
                    self.shared.groups.rewrite(name, limit);
                    self.forget(&in_order, Subject::Group(name.clone()), "limit");
                    done.changed.push(format!("{title}: limit"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Removes groups that are no longer in the configuration, after its disks.
    pub(super) fn reload_gone_groups(&self, config: &Config, done: &mut Reloaded) {
        for (name, (origin, _)) in self.shared.groups.written() {
            if origin == Origin::File && !config.groups.has(&name) {
                match self.remove_group(&name) {
                    Ok(_) => done.removed.push(format!("group {name}")),
                    Err(refused) => done.kept.push(format!("group {name}: {}", refused.error)),
                }
            }
        }
    }
}

fn unknown(what: String) -> Refused {
    let advice = "see `flowstone group list` for the names";
    Refused::unknown(Error::invalid(what, "no group is called that", advice))
}

impl Plan {
    /// Restores a group that was added, or the limit set for one; of two groups with the same name,
    /// that of the configuration wins.
    pub(super) fn take_group(
        &mut self,
        (config, state, shared): (&Config, &State, &Shared),
        name: &str,
        added: Option<Table>,
    ) {
        match added {
            Some(_) if config.groups.has(name) => {
                warn!(group = name, "it was added before, and the configuration's wins");
            }
            Some(keys) => {
                let limit = limit_of_group(name, keys);
                let added = limit.and_then(|limit| shared.groups.add(name, limit, Origin::Api));
                if let Err(error) = added {
                    self.refused.push((None, error, Origin::Api));
                }
            }
            None => {}
        }
        let written = shared.groups.written().remove(name);
        let written = written.filter(|(origin, _)| *origin == Origin::File);
        let written = written.map(|(_, limit)| limit.to_string());
        for (_, limit) in state.holds(&Subject::Group(name.to_owned()), |_| written.clone()) {
            match (shared.groups.get(name), limit.parse()) {
                (Some(group), Ok(limit)) => group.set_limit(limit),
                (None, _) => info!(group = name, "a limit was set of it, and it is not there"),
                (_, Err(why)) => warn!(group = name, "its limit cannot be set: {why}"),
            }
        }
    }
}
