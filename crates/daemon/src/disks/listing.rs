//! Listing of all disks, in any state, for operators.

use std::collections::BTreeMap;
use std::sync::Arc;

use flowstone_block::lock;
use flowstone_control::Origin;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use super::{Disks, Entry, Failed, State};
use crate::config::Keys;

/// One row of `disk list`.
#[derive(Debug, Serialize)]
pub struct Listed {
    name: Option<String>,
    state: &'static str,
    origin: Origin,
    socket: Option<String>,
    image: Option<String>,
    connected: bool,
    /// Recovery progress of the image while it is being opened.
    progress: Option<Recovery>,
    error: Option<Failed>,
}

/// Recovery progress of an image.
#[derive(Debug, Serialize)]
struct Recovery {
    segments_read: u64,
    segments: u64,
}

impl Recovery {
    fn of(entry: &Entry) -> Option<Self> {
        let is_opening = matches!(entry.state, State::Opening | State::Starting);
        let (segments_read, segments) = entry.progress.segments().filter(|_| is_opening)?;
        Some(Self { segments_read: segments_read.min(segments), segments })
    }
}

impl Listed {
    fn of(entry: &Entry) -> Self {
        let (state, connected) = match &entry.state {
            State::Opening | State::Starting => ("opening", false),
            State::Serving(disk) => ("serving", disk.shared.is_connected()),
            State::Stopping | State::Cancelled => ("stopping", false),
            State::Failed(_) => ("failed", false),
        };
        let config = &entry.config;
        Self {
            name: Some(entry.name.clone()),
            state,
            origin: entry.origin,
            socket: Some(config.socket.display().to_string()),
            image: config.stack.image.as_ref().map(|image| image.display().to_string()),
            connected,
            progress: Recovery::of(entry),
            error: entry.failed().cloned(),
        }
    }

    /// Makes the row of a requested disk that cannot exist.
    fn refused(refusal: Refusal) -> Self {
        Self {
            name: refusal.failed.name.clone(),
            state: "failed",
            origin: refusal.origin,
            socket: None,
            image: None,
            connected: false,
            progress: None,
            error: Some(refusal.failed),
        }
    }
}

impl Disks {
    /// Returns the rows of all disks.
    pub fn list(&self) -> Vec<Listed> {
        let table = lock(&self.table);
        let refused = table.refused().map(Listed::refused);
        refused.chain(table.visible().map(|(_, entry)| Listed::of(entry))).collect()
    }

    /// Returns the origin and keys of each disk that was configured or added, by name, without
    /// failed ones.
    pub fn written(&self) -> BTreeMap<String, (Origin, Keys)> {
        let table = lock(&self.table);
        let lasts = table.visible().filter(|(_, entry)| entry.failed().is_none());
        let written = |entry: &Entry| (entry.origin, entry.config.keys.clone());
        lasts.map(|(_, entry)| (entry.name.clone(), written(entry))).collect()
    }

    /// Replaces the keys of a disk.
    pub fn rewrite(&self, name: &str, keys: &Keys) {
        let mut table = lock(&self.table);
        if let Some(entry) = table.known.values_mut().find(|entry| entry.name == name) {
            Arc::make_mut(&mut entry.config).keys.clone_from(keys);
        }
    }

    /// Returns the names of the disks in a group, including failed ones that may be tried again.
    pub fn of_group(&self, group: &str) -> Vec<String> {
        let table = lock(&self.table);
        let all = table.visible().map(|(_, entry)| entry);
        let those = all.filter(|entry| entry.config.beside.group.as_deref() == Some(group));
        those.map(|entry| entry.name.clone()).collect()
    }

    /// Returns the name of each disk, and whether it is served.
    pub fn names(&self) -> Vec<(String, bool)> {
        let table = lock(&self.table);
        let name = |entry: &Entry| (entry.name.clone(), matches!(entry.state, State::Serving(_)));
        table.visible().map(|(_, entry)| name(entry)).collect()
    }

    /// Returns a disk with its keys and their origin.
    pub fn show(&self, name: &str) -> Option<Value> {
        let table = lock(&self.table);
        let Some((_, entry)) = table.visible().find(|(_, entry)| entry.name == name) else {
            let mut refused = table.refused();
            let refusal = refused.find(|it| it.failed.name.as_deref() == Some(name))?;
            let mut shown = json!(Listed::refused(refusal));
            shown["keys"] = json!({});
            return Some(shown);
        };
        let mut shown = json!(Listed::of(entry));
        let key = |(key, values): (&String, &Vec<String>)| {
            (key.clone(), json!({ "value": values.join(","), "origin": entry.origin }))
        };
        shown["keys"] = Value::Object(entry.config.keys.iter().map(key).collect::<Map<_, _>>());
        Some(shown)
    }
}
