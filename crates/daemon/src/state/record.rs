//! The record of a disk or group.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Table;

/// The subject of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Disk(String),
    Group(String),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(name) => write!(f, "disk {}", name.escape_debug()),
            Self::Group(name) => write!(f, "group {}", name.escape_debug()),
        }
    }
}

/// The persistent changes of a subject.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The disk, or
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
    /// the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// Keys of an added disk or group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Table>,
    /// Settings made, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// Configured values of these keys when they were set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub was: BTreeMap<String, String>,
}

impl Record {
    /// Makes an empty record.
    pub fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Disk(name) => Self { disk: Some(name.clone()), ..Self::default() },
            Subject::Group(name) => Self { group: Some(name.clone()), ..Self::default() },
        }
    }

    /// Parses the text of a file.
    pub fn read(text: &str) -> Result<Self, String> {
        let record: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        match (&record.disk, &record.group) {
            (Some(_), None) | (None, Some(_)) => Ok(record),
            _ => Err("it names neither a disk nor a group, or both".into()),
        }
    }

    /// Returns the text of a file.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a record is plain values")
    }

    /// Returns the subject.
    pub fn subject(&self) -> Subject {
        match (&self.disk, &self.group) {
            (Some(name), _) => Subject::Disk(name.clone()),
            (None, name) => Subject::Group(name.clone().unwrap_or_default()),
        }
    }

    /// Returns whether the record is empty.
    pub fn says_nothing(&self) -> bool {
        self.added.is_none() && self.set.is_empty()
    }

    /// Begins anew, with the keys of what has been added, if it has.
    pub fn begin(&mut self, added: Option<Table>) {
        *self = Self { added, ..Self::of(&self.subject()) };
    }

    /// Sets a key whose value in the configuration is `was`.
    pub fn set(&mut self, key: &str, value: String, was: Option<String>) {
        self.forget(key);
        self.set.insert(key.to_owned(), value);
        was.and_then(|was| self.was.insert(key.to_owned(), was));
    }

    /// Drops the setting of a key.
    pub fn forget(&mut self, key: &str) {
        self.set.remove(key);
        self.was.remove(key);
    }
}
