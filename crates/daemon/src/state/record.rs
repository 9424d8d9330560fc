//! What is kept about one disk or group.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Table;

/// What a record is about.
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

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The disk that it is about; or
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<String>,
    /// the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
    /// The keys of a disk that was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<Table>,
    /// What was set of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub set: BTreeMap<String, String>,
    /// What the configuration said then of what was set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub was: BTreeMap<String, String>,
}

impl Record {
    /// One that says nothing yet.
    pub fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Disk(name) => Self { disk: Some(name.clone()), ..Self::default() },
            Subject::Group(name) => Self { group: Some(name.clone()), ..Self::default() },
        }
    }

    /// Reads the text of a file.
    pub fn read(text: &str) -> Result<Self, String> {
        let record: Self = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        match (&record.disk, &record.group) {
            (Some(_), None) | (None, Some(_)) => Ok(record),
            _ => Err("it names neither a disk nor a group, or both".into()),
        }
    }

    /// The text of a file.
    pub fn text(&self) -> String {
        toml::to_string(self).expect("a record is plain values")
    }

    /// What it is about.
    pub fn subject(&self) -> Subject {
        match (&self.disk, &self.group) {
            (Some(name), _) => Subject::Disk(name.clone()),
            (None, name) => Subject::Group(name.clone().unwrap_or_default()),
        }
    }

    /// Whether there is nothing to be kept.
    pub fn says_nothing(&self) -> bool {
        self.added.is_none() && self.set.is_empty()
    }

    /// A key was set, of which the configuration says `was`.
    pub fn set(&mut self, key: &str, value: String, was: Option<String>) {
        self.forget(key);
        self.set.insert(key.to_owned(), value);
        was.and_then(|was| self.was.insert(key.to_owned(), was));
    }

    /// Nothing is set of a key any more.
    pub fn forget(&mut self, key: &str) {
        self.set.remove(key);
        self.was.remove(key);
    }
}
