//! Persistent record of changes made on the control socket, in the state directory.
//!
//! There is one file for each disk and group that was changed. A new version is written to a
//! temporary file, synced, and renamed over the old one, and the directory is synced: after a crash
//! the file is the old or the new version. File names are numbers, since names of disks are
//! arbitrary. One daemon at a time uses the directory, which is locked itself.

mod record;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use flowstone_block::{Error, Result, lock, mutated};
use flowstone_host::{Folder, HostFolder};
use tracing::{info, warn};

pub use self::record::{Record, Subject};

const EXTENSION: &str = "toml";
/// Extension of a file being written.
const NEW: &str = "new";

/// The state directory.
pub struct State {
    path: PathBuf,
    folder: Box<dyn Folder>,
    /// Not locked while the host is asked: it may hang, and others only read.
    records: Mutex<BTreeMap<Subject, Kept>>,
    /// Files that cannot be read; they are left in place.
    unreadable: Vec<Error>,
    /// Subjects with several files, by number: none is used, and all are left in place.
    disputed: BTreeMap<Subject, Vec<u64>>,
}

/// A record and the number of its file.
struct Kept {
    number: u64,
    record: Record,
}

impl State {
    /// Locks the directory, which is created if its parent exists, and reads its records.
    pub fn open(path: &Path) -> Result<Self> {
        let name = format!("state-dir {}", path.display());
        let host = |error: io::Error| Error::host(name.clone(), error, "choose another folder");
        let folder = HostFolder::open(path).map_err(host)?;
        let is_ours = folder.lock().map_err(host)?;
        let is_ours = mutated("daemon.state.does-not-lock", is_ours, true);
        if !is_ours {
            let why = "another daemon is using it";
            return Err(Error::busy(name, why, "stop that, or choose another folder"));
        }
        Self::read(path, Box::new(folder)).map_err(host)
    }

    fn read(path: &Path, folder: Box<dyn Folder>) -> io::Result<Self> {
        let (mut found, mut unreadable) = (BTreeMap::<Subject, Vec<Kept>>::new(), Vec::new());
        for file in folder.names()? {
            match file.rsplit_once('.') {
                // It was not completed, so its request was not answered.
                Some((_, NEW)) => {
                    if let Err(error) = folder.remove(&file) {
                        warn!("{}: cannot be removed: {error}", path.join(&file).display());
                    }
                }
                Some((stem, EXTENSION)) => {
                    let text = folder.read(&file).map_err(|error| error.to_string());
                    let record = text.and_then(|text| Record::read(&text));
                    let kept = record.and_then(|record| {
                        let number = stem.parse().ok().filter(|number| name(*number) == file);
                        let number = number.ok_or("its name is none that a daemon gives")?;
                        Ok(Kept { number, record })
                    });
                    match kept {
                        Ok(kept) => found.entry(kept.record.subject()).or_default().push(kept),
                        Err(why) => {
                            let name = format!("state of a disk {}", path.join(&file).display());
                            let advice = "correct it, or remove it and add the disk again";
                            unreadable.push(Error::invalid(name, why, advice));
                        }
                    }
                }
                _ => {}
            }
        }
        let (mut records, mut disputed) = (BTreeMap::new(), BTreeMap::new());
        for (subject, mut all) in found {
            let last = all.pop().expect("it has been found");
            let is_one = mutated("daemon.state.uses-one-of-several-files", all.is_empty(), true);
            if is_one {
                records.insert(subject, last);
            } else {
                let mut numbers = Vec::from_iter(all.iter().chain([&last]).map(|it| it.number));
                numbers.sort_unstable();
                disputed.insert(subject, numbers);
            }
        }
        let (path, records) = (path.to_owned(), Mutex::new(records));
        Ok(Self { path, folder, records, unreadable, disputed })
    }

    /// Returns the errors of files that cannot be read.
    pub fn unreadable(&self) -> &[Error] {
        &self.unreadable
    }

    /// Returns the subjects with several files.
    pub fn disputed(&self) -> impl Iterator<Item = &Subject> {
        self.disputed.keys()
    }

    /// Refuses a subject with several files. Only an operator can know which one holds.
    pub fn check(&self, subject: &Subject) -> Result<()> {
        let Some(numbers) = self.disputed.get(subject) else { return Ok(()) };
        let files: Vec<String> = numbers.iter().map(|number| name(*number)).collect();
        let what = format!("{subject} in state-dir {}", self.path.display());
        let why = format!("{} are all about it, so none is used", files.join(", "));
        let advice = "remove all of them but one, and start the daemon again";
        Err(Error::invalid(what, why, advice))
    }

    /// Returns all records.
    pub fn all(&self) -> Vec<Record> {
        lock(&self.records).values().map(|kept| kept.record.clone()).collect()
    }

    /// Returns the record of a subject.
    pub fn get(&self, subject: &Subject) -> Option<Record> {
        lock(&self.records).get(subject).map(|kept| kept.record.clone())
    }

    /// Changes the record of a subject; the change is durable when this returns. An empty record is
    /// removed. Changes are made one after the other (`serve::changes`).
    pub fn change(&self, subject: Subject, change: impl FnOnce(&mut Record)) -> Result<()> {
        self.check(&subject)?;
        let before =
            lock(&self.records).get(&subject).map(|kept| (kept.number, kept.record.clone()));
        let is_new = before.is_none();
        let mut record = before.as_ref().map_or_else(|| Record::of(&subject), |it| it.1.clone());
        change(&mut record);
        if is_new && record.says_nothing() {
            // No file is about it.
            return Ok(());
        }
        let number = match before {
            Some((number, _)) => number,
            None => self.free_number().map_err(|error| self.failed(error))?,
        };
        let takes = mutated("daemon.state.takes-a-file-when-it-is-written", is_new, false);
        if takes {
            // First: whatever becomes of the write, the next one has the same file.
            let record = Record::of(&subject);
            lock(&self.records).insert(subject.clone(), Kept { number, record });
        }
        let done = if record.says_nothing() {
            self.remove(number)
        } else {
            self.write(number, &record.text())
        };
        if let Err(error) = done {
            let there = self.folder.names();
            if is_new && there.is_ok_and(|names| !names.contains(&name(number))) {
                lock(&self.records).remove(&subject);
            }
            return Err(self.failed(error));
        }
        let mut records = lock(&self.records);
        if record.says_nothing() {
            records.remove(&subject);
        } else {
            records.insert(subject, Kept { number, record });
        }
        Ok(())
    }

    fn failed(&self, error: io::Error) -> Error {
        let name = format!("state-dir {}", self.path.display());
        Error::host(name, error, "make room, make it writable, or put it back")
    }

    fn free_number(&self) -> io::Result<u64> {
        // Files that cannot be read have numbers, too.
        let names = self.folder.names()?;
        let records = lock(&self.records);
        let is_free = |number: &u64| {
            records.values().all(|kept| kept.number != *number) && !names.contains(&name(*number))
        };
        Ok((0..).find(is_free).expect("there are fewer disks"))
    }

    fn write(&self, number: u64, text: &str) -> io::Result<()> {
        let new = format!("{number}.{NEW}");
        self.folder.write(&new, text)?;
        let syncs = mutated("daemon.state.renames-what-is-not-durable", true, false);
        if syncs {
            self.folder.sync_file(&new)?;
        }
        self.folder.rename(&new, &name(number))?;
        self.sync()
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        match self.folder.remove(&name(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        let syncs = mutated("daemon.state.answers-before-the-folder-is-durable", true, false);
        if !syncs {
            return Ok(());
        }
        self.folder.sync()
    }

    /// Returns the settings of `subject` that still hold; `written` returns its keys in the
    /// configuration. A setting whose key has changed in the configuration is dropped.
    pub fn holds(
        &self,
        subject: &Subject,
        written: impl Fn(&str) -> Option<String>,
    ) -> BTreeMap<String, String> {
        let Some(record) = self.get(subject) else { return BTreeMap::new() };
        let (holds, over): (BTreeMap<_, _>, BTreeMap<_, _>) = record
            .set
            .into_iter()
            .partition(|(key, _)| record.was.get(key) == written(key).as_ref());
        for (key, value) in &holds {
            info!("{subject}: {key} = {value} was set, and wins over the configuration");
        }
        for key in over.keys() {
            info!(
                "{subject}: {key} has changed in the configuration, which wins over what was set"
            );
        }
        if !over.is_empty() {
            let forget = |record: &mut Record| over.keys().for_each(|key| record.forget(key));
            if let Err(error) = self.change(subject.clone(), forget) {
                warn!("{error}");
            }
        }
        holds
    }
}

/// Returns the name of a record's file.
fn name(number: u64) -> String {
    format!("{number}.{EXTENSION}")
}

#[cfg(test)]
mod tests;
