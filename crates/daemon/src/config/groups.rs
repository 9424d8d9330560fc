//! Groups of disks that share a limit.

use flowstone_qos::GroupArgs;
use toml::Table;

use super::label::check_label;
use super::{NAME_BYTES_MAX, Refusal, table};

/// The groups of a file; each has a name of its own, and a limit.
#[derive(Debug, Default)]
pub struct Groups(Vec<GroupArgs>);

impl Groups {
    /// One more.
    pub(super) fn add(&mut self, table: &Table) -> Result<(), Refusal> {
        let group: GroupArgs = table::read(table, &[])?;
        let correct = |why| Refusal::new(why, "correct the [[group]]");
        group.limit().map_err(correct)?;
        check_label("name", "group", &group.name, NAME_BYTES_MAX).map_err(correct)?;
        if self.has(&group.name) {
            return Err(correct(format!("two groups are called `{}`", group.name)));
        }
        self.0.push(group);
        Ok(())
    }

    /// Whether there is one of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|group| group.name == name)
    }

    /// The limit of one, as it is written.
    pub fn limit_of(&self, name: &str) -> Option<String> {
        let group = self.0.iter().find(|group| group.name == name)?;
        group.limit().ok().map(|limit| limit.to_string())
    }

    /// All of them.
    pub fn all(&self) -> &[GroupArgs] {
        &self.0
    }
}
