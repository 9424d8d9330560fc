//! What was asked for on the control socket, kept in a folder over the end of the daemon.
//!
//! One file for each disk and group that anything was asked of. A file is written whole beside the
//! one that it replaces, synced, renamed, and the folder synced: after a kill it is what it was or
//! what it is to be. Its name is a number, since a disk may be called anything. One daemon at a
//! time has the folder.

mod record;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use flowstone_block::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use tracing::{info, warn};

pub use self::record::{Record, Subject};

const EXTENSION: &str = "toml";
/// Of a file that is being written.
const NEW: &str = "new";
const LOCK: &str = "lock";

/// The folder.
pub struct State {
    folder: PathBuf,
    records: Mutex<BTreeMap<Subject, Kept>>,
    /// Files that cannot be read: they are kept.
    unreadable: Vec<Error>,
    _lock: File,
}

/// A record, and the number of its file.
struct Kept {
    number: u64,
    record: Record,
}

impl State {
    /// Takes the folder, which is made if its parent is there, and reads what is in it.
    pub fn open(folder: &Path) -> Result<Self> {
        let name = format!("state-dir {}", folder.display());
        let host = |error: io::Error| Error::host(name.clone(), error, "choose another folder");
        match fs::create_dir(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(host(error)),
            _ => {}
        }
        let lock = create(&folder.join(LOCK)).map_err(host)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            let why = "another daemon is using it";
            return Err(Error::busy(name, why, "stop that, or choose another folder"));
        }
        let mut state = Self {
            folder: folder.to_owned(),
            records: Mutex::default(),
            unreadable: Vec::new(),
            _lock: lock,
        };
        state.read().map_err(host)?;
        Ok(state)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut records = BTreeMap::new();
        for file in fs::read_dir(&self.folder)? {
            let path = file?.path();
            let extension = path.extension().and_then(|it| it.to_str()).unwrap_or_default();
            if extension == NEW {
                // It was not finished, so it was not answered.
                fs::remove_file(&path)?;
            }
            if extension != EXTENSION {
                continue;
            }
            let number = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u64>().ok());
            let text = fs::read_to_string(&path).map_err(|error| error.to_string());
            let read = text.and_then(|text| Record::read(&text));
            let read = read.and_then(|record| {
                let number = number.ok_or("its name is no number")?;
                let kept = Kept { number, record };
                let subject = kept.record.subject();
                let before = records.insert(subject, kept);
                if before.is_some() { Err("another file is about the same".into()) } else { Ok(()) }
            });
            if let Err(why) = read {
                let name = format!("state of a disk {}", path.display());
                let advice = "correct it, or remove it and add the disk again";
                self.unreadable.push(Error::invalid(name, why, advice));
            }
        }
        self.records = Mutex::new(records);
        Ok(())
    }

    fn records(&self) -> MutexGuard<'_, BTreeMap<Subject, Kept>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files that cannot be read.
    pub fn unreadable(&self) -> &[Error] {
        &self.unreadable
    }

    /// All records.
    pub fn all(&self) -> Vec<Record> {
        self.records().values().map(|kept| kept.record.clone()).collect()
    }

    /// What is kept about this.
    pub fn get(&self, subject: &Subject) -> Option<Record> {
        self.records().get(subject).map(|kept| kept.record.clone())
    }

    /// Changes what is kept of something; it is durable when this returns. What says nothing is
    /// not kept.
    pub fn change(&self, subject: Subject, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut records = self.records();
        let number = records.get(&subject).map(|kept| kept.number);
        let number = number.unwrap_or_else(|| self.free_number(&records));
        let before = records.get(&subject).map(|kept| kept.record.clone());
        let mut record = before.unwrap_or_else(|| Record::of(&subject));
        change(&mut record);
        let done = if record.says_nothing() {
            self.remove(number)
        } else {
            self.write(number, &record.text())
        };
        done.map_err(|error| {
            let name = format!("state-dir {}", self.folder.display());
            Error::host(name, error, "make room, or make it writable")
        })?;
        if record.says_nothing() {
            records.remove(&subject);
        } else {
            records.insert(subject, Kept { number, record });
        }
        Ok(())
    }

    fn free_number(&self, records: &BTreeMap<Subject, Kept>) -> u64 {
        let is_free = |number: &u64| {
            // A file that cannot be read has one, too.
            records.values().all(|kept| kept.number != *number) && !self.path(*number).exists()
        };
        (0..).find(is_free).expect("there are fewer disks")
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number}.{EXTENSION}"))
    }

    fn write(&self, number: u64, text: &str) -> io::Result<()> {
        let (path, new) = (self.path(number), self.folder.join(format!("{number}.{NEW}")));
        let mut file = create(&new)?;
        file.write_all(text.as_bytes())?;
        sync(&file)?;
        fs::rename(&new, &path)?;
        self.sync_folder()
    }

    fn remove(&self, number: u64) -> io::Result<()> {
        match fs::remove_file(self.path(number)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.sync_folder()
    }

    fn sync_folder(&self) -> io::Result<()> {
        sync(&File::open(&self.folder)?)
    }

    /// What was set of `subject`, whose keys the configuration has as `written`: the value of each
    /// that still holds. One whose text in the configuration has changed is forgotten.
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

/// For its owner alone: names of tenants are in it.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

#[expect(clippy::disallowed_methods, reason = "no image is in this folder")]
fn sync(file: &File) -> io::Result<()> {
    file.sync_all()
}

#[cfg(test)]
mod tests;
