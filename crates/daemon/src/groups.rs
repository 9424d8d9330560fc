//! Groups of disks that share a limit, from the configuration or added later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use flowstone_block::{Error, Result, lock};
use flowstone_control::Origin;
use flowstone_qos::{Group, GroupArgs, GroupReport, Limit};
use serde::Serialize;

/// All groups by name.
#[derive(Default)]
pub struct GroupTable(Mutex<BTreeMap<String, Known>>);

struct Known {
    group: Arc<Group>,
    origin: Origin,
    /// The limit it was made with; a limit set since is only in the group.
    written: Limit,
}

/// One row of `group list`.
#[derive(Serialize)]
pub struct ListedGroup {
    #[serde(flatten)]
    pub group: GroupReport,
    origin: Origin,
    /// Its disks, which this table does not know.
    pub disks: Vec<String>,
}

impl GroupTable {
    /// Makes the groups of a configuration.
    pub fn of(groups: &[GroupArgs]) -> Result<Self> {
        let table = Self::default();
        for group in groups {
            let limit = group.together.limit();
            let limit = limit.map_err(|why| Error::invalid("group", why, "correct it"))?;
            table.add(&group.name, limit, Origin::File)?;
        }
        Ok(table)
    }

    /// Adds a group. Returns `false` if it exists already and was made with this limit, or has it
    /// now.
    pub fn add(&self, name: &str, limit: Limit, origin: Origin) -> Result<bool> {
        let mut groups = lock(&self.0);
        if let Some(known) = groups.get(name) {
            if known.written == limit || known.group.limit() == limit {
                return Ok(false);
            }
            let why = "there is another group of that name";
            let advice = "remove that, or change it with `flowstone group set`";
            return Err(Error::busy(format!("group {name}"), why, advice));
        }
        let group = Group::new(name.to_owned(), limit);
        groups.insert(name.to_owned(), Known { group, origin, written: limit });
        Ok(true)
    }

    /// Removes a group; disks in it keep its limit.
    pub fn remove(&self, name: &str) {
        lock(&self.0).remove(name);
    }

    /// Returns the group of this name.
    pub fn get(&self, name: &str) -> Option<Arc<Group>> {
        lock(&self.0).get(name).map(|known| Arc::clone(&known.group))
    }

    /// Returns the origin of each group and the limit it was made with.
    pub fn written(&self) -> BTreeMap<String, (Origin, Limit)> {
        let written =
            |(name, known): (&String, &Known)| (name.clone(), (known.origin, known.written));
        lock(&self.0).iter().map(written).collect()
    }

    /// Sets a new limit that the configuration gives.
    pub fn rewrite(&self, name: &str, limit: Limit) {
        if let Some(known) = lock(&self.0).get_mut(name) {
            known.written = limit;
            known.group.set_limit(limit);
        }
    }

    /// Returns the rows of `group list`, without the disks.
    pub fn list(&self) -> Vec<ListedGroup> {
        let listed = |(name, known): (&String, &Known)| ListedGroup {
            group: GroupReport::of(name, &known.group),
            origin: known.origin,
            disks: Vec::new(),
        };
        lock(&self.0).iter().map(listed).collect()
    }

    /// Returns all groups for `stats --json`.
    pub fn report(&self) -> Vec<GroupReport> {
        let report = |(name, known): (&String, &Known)| GroupReport::of(name, &known.group);
        lock(&self.0).iter().map(report).collect()
    }
}
