//! The disks that a daemon starts with: those of its configuration, and those added earlier.

use flowstone_block::Error;
use flowstone_control::{Failure, Origin};
use tracing::warn;

use crate::config::{Config, DiskConfig};
use crate::stack::Shared;
use crate::state::{State, Subject};

/// The disks to start with.
pub struct Plan {
    pub disks: Vec<(DiskConfig, Origin)>,
    /// Errors of the disks left out, with their origin; and of added disks, with their names, and
    /// groups whose records conflict.
    pub refused: Vec<(Option<String>, Error, Origin)>,
}

impl Plan {
    /// Makes the plan. Also restores added groups and the limits set for groups.
    pub fn of(config: &Config, state: Option<&State>, shared: &Shared) -> Self {
        let of_file = config.disks.iter().map(|disk| (disk.clone(), Origin::File));
        let disks = of_file.collect();
        let mut plan = Self { disks, refused: Vec::new() };
        let copy = |origin| move |error| (None, Failure::of(error).into_error(), origin);
        plan.refused.extend(config.refused.iter().map(copy(Origin::File)));
        let Some(state) = state else { return plan };
        plan.refused.extend(state.unreadable().iter().map(copy(Origin::Api)));
        for record in state.all() {
            match (record.subject(), record.added) {
                (Subject::Disk(name), Some(keys)) => plan.add(config, &name, keys),
                (Subject::Disk(_), None) => {}
                (Subject::Group(name), keys) => {
                    plan.take_group((config, state, shared), &name, keys);
                }
            }
        }
        for subject in state.disputed() {
            let name = match subject {
                Subject::Disk(name) => Some(name.clone()),
                Subject::Group(_) => None,
            };
            let error = state.check(subject).err();
            plan.refused.extend(error.map(|error| (name, error, Origin::Api)));
        }
        for (disk, _) in &mut plan.disks {
            if let Err(error) = set_disk(state, disk) {
                warn!("{error}");
            }
        }
        plan
    }

    /// Restores an added disk; a disk of the configuration with the same name wins.
    fn add(&mut self, config: &Config, name: &str, keys: toml::Table) {
        if self.disks.iter().any(|(disk, _)| disk.name() == name) {
            return warn!(disk = name, "it was added before, and the configuration's wins");
        }
        match config.daemon.disk(name, keys) {
            Ok(disk) => self.disks.push((disk, Origin::Api)),
            Err(error) => self.refused.push((None, error, Origin::Api)),
        }
    }
}

/// Applies the settings made for a disk as if they were configured.
fn set_disk(state: &State, disk: &mut DiskConfig) -> Result<(), Error> {
    let subject = Subject::Disk(disk.name());
    let written = |key: &str| disk.keys.get(key).map(|values| values.join(","));
    let refuse = |why: String| Error::invalid(subject.to_string(), why, "set it again");
    for (key, value) in state.holds(&subject, written) {
        match &*key {
            "limit" => disk.stack.share.limit = Some(value.parse().map_err(refuse)?),
            "weight" => disk.stack.share.weight = Some(value.parse().map_err(refuse)?),
            _ => return Err(refuse(format!("`{key}` cannot be set"))),
        }
    }
    Ok(())
}
