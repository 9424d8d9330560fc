//! Groups of disks that share a limit.

use flowstone_block::Result;
use flowstone_qos::{GroupArgs, Limit};
use toml::Table;

use super::label::check_label;
use super::{NAME_BYTES_MAX, Refusal, table};

/// The groups of a file; names are unique, and each group has a limit.
#[derive(Debug, Default)]
pub struct Groups(Vec<GroupArgs>);

impl Groups {
    /// Adds a group.
    pub(super) fn add(&mut self, table: &Table) -> std::result::Result<(), Refusal> {
        let (group, _) = read(table)?;
        if self.has(&group.name) {
            let why = format!("two groups are called `{}`", group.name);
            return Err(Refusal::new(why, ADVICE));
        }
        self.0.push(group);
        Ok(())
    }

    /// Returns whether there is a group of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|group| group.name == name)
    }

    /// Returns all groups.
    pub fn all(&self) -> &[GroupArgs] {
        &self.0
    }
}

const ADVICE: &str = "correct the [[group]]";

fn read(table: &Table) -> std::result::Result<(GroupArgs, Limit), Refusal> {
    let (group, _): (GroupArgs, _) = table::read(table, &[])?;
    let correct = |why| Refusal::new(why, ADVICE);
    let limit = group.together.limit().map_err(correct)?;
    check_label("name", "group", &group.name, NAME_BYTES_MAX).map_err(correct)?;
    Ok((group, limit))
}

/// Reads the limit of the group called `name` from the keys of a `[[group]]`.
pub fn limit_of_group(name: &str, mut table: Table) -> Result<Limit> {
    let read = table::call(&mut table, name, "group").and_then(|()| read(&table));
    read.map(|(_, limit)| limit).map_err(|refusal| refusal.of(&format!("group {name}")))
}
