//! Reads the redo file that a killed daemon has left, and compares it with the header before
//! anything is written. If changes may be missing, the image is refused: without them completed
//! writes would be lost, and with those of another session two guest clusters would share one host
//! cluster.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use flowstone_block::mutated;
use rustix::fs::OFlags;
use tracing::warn;

use super::super::boot::{Boot, Since, Witness};
use super::super::mark::Mark;
use super::super::shape::GuestCluster;
use super::folder::{Folder, Named, flaw_of, is_free, name_of, old_name_of, read_words};
use super::layout::*;
use super::live::Live;
use super::lost::{Lost, Why};
use super::{Place, RedoRecord};

/// State that a killed daemon has left.
#[derive(Debug)]
pub enum Left {
    /// Nothing: the image alone is complete.
    Nothing,
    /// A redo file of this session that is useless now.
    Void(Found),
    /// Changes of the map that the image may lack, oldest first.
    Changes(Found, Vec<RedoRecord>),
}

impl Left {
    pub fn changes(&self) -> &[RedoRecord] {
        match self {
            Self::Nothing | Self::Void(_) => &[],
            Self::Changes(_, changes) => changes,
        }
    }

    /// Removes a void file, once the header has no mark any more. It does no harm if it stays.
    pub fn remove(self) {
        if let Self::Void(found) = self {
            let _ = found.remove();
        }
    }
}

/// Finds what a killed daemon has left for an image with these autoclear features.
pub fn recall(memory: Option<Place<'_>>, autoclear: u64) -> Result<Left, Lost> {
    let Some(mark) = Mark::of(autoclear) else { return Ok(Left::Nothing) };
    let Some(place) = memory else {
        return Err(Lost { redo: name_of(mark).into(), why: Why::Missing });
    };
    let image = place.image;
    let unreadable = |error| Lost { redo: image.into(), why: Why::Unreadable(error) };
    let boot = Boot::read().map_err(unreadable)?;
    let folder = Folder::of(image).map_err(unreadable)?;
    let old_name = old_name_of(image).map_err(unreadable)?;
    let mut found = Found::look(folder, mark, &old_name, image)?;
    let redo = found.path();
    found.live = Live::find(place, mark, found.live_number(), found.image.1);
    found.judge(mark, &boot).map_err(|why| Lost { redo, why })
}

/// A redo file that was found.
#[derive(Debug)]
pub struct Found {
    pub beside: Named,
    /// The file that the session has left in the memory of the host.
    pub live: Option<Live>,
    metadata: Metadata,
    /// Inode and owner of the image.
    image: (u64, u32),
    pub bytes: Vec<u8>,
}

impl Found {
    /// Finds it under the name of the session, or under the name that earlier versions used.
    fn look(folder: Folder, mark: Mark, old_name: &OsStr, image: &Path) -> Result<Self, Lost> {
        let mut name = name_of(mark);
        let missing = folder.path_of(&name);
        let mut file = folder.open(&name, OFlags::RDONLY);
        if file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            file = folder.open(old_name, OFlags::RDONLY);
            name = old_name.to_owned();
        }
        let redo = folder.path_of(&name);
        let file = file.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Lost { redo: missing.clone(), why: Why::Missing },
            _ => Lost { redo: redo.clone(), why: Why::Unreadable(error) },
        })?;
        let unreadable = |error| Lost { redo: redo.clone(), why: Why::Unreadable(error) };
        let metadata = file.metadata().map_err(unreadable)?;
        let image = std::fs::metadata(image).map_err(unreadable)?;
        let image = (image.ino(), image.uid());
        let bytes = read_words(&file, &metadata).map_err(unreadable)?;
        let beside = Named::found(folder, name, file);
        let found = Self { beside, live: None, metadata, image, bytes };
        if found.beside.name == old_name && ![MAGIC_1, MAGIC_2, MAGIC].contains(&found.word(0)) {
            // Another user's file that happens to have this name.
            return Err(Lost { redo: missing, why: Why::Missing });
        }
        // The owner of the image controls its content anyway.
        match flaw_of(&found.metadata, Some(found.image.1)) {
            Some(flaw) => Err(Lost { redo: found.path(), why: Why::Foreign(flaw) }),
            None => Ok(found),
        }
    }

    pub fn path(&self) -> PathBuf {
        self.beside.path()
    }

    /// Removes it: its changes are in the image, or void. If another process uses it, it stays.
    pub fn remove(mut self) -> io::Result<()> {
        if self.word(0) == MAGIC_1 {
            // Version 1 does not state which image it belongs to.
            return Ok(());
        }
        if let Some(Live { named, .. }) = self.live.as_mut().filter(|it| is_free(&it.named.file)) {
            named.remove()?;
        }
        if is_free(&self.beside.file) { self.beside.remove() } else { Ok(()) }
    }

    /// Returns whether the records are in the memory of the host.
    pub fn is_away(&self) -> bool {
        self.word(0) == MAGIC_AWAY
    }

    /// Returns the number of the file in the memory of the host; 0: none.
    pub fn live_number(&self) -> u64 {
        let has_one = [MAGIC, MAGIC_AWAY].contains(&self.word(0));
        if has_one { self.word(LIVE_WORD) } else { 0 }
    }

    /// Returns the content of the file with the records.
    fn recorded(&self) -> &[u8] {
        match &self.live {
            Some(live) if self.is_away() => &live.bytes,
            _ => &self.bytes,
        }
    }

    /// Returns the mark of the last commit.
    pub fn mark(&self) -> Option<Mark> {
        Mark::of(word_of(self.recorded(), MARK_WORD))
    }

    fn word(&self, index: usize) -> u64 {
        word_of(&self.bytes, index)
    }

    fn is_whole(&self) -> bool {
        let has_header = !self.is_away() || self.bytes.len() == HEADER_BYTES;
        let has_records =
            self.is_away() && self.live.is_none() || self.recorded().len() as u64 == BYTES;
        has_header && has_records
    }

    fn judge(self, mark: Mark, boot: &Boot) -> Result<Left, Why> {
        if !self.is_whole() {
            return Err(Why::Strange);
        }
        let since = match &self.live {
            Some(_) => Since::SameBoot,
            None => boot.since(&self.witness()),
        };
        match (self.word(0), mark.is_old_kind()) {
            (MAGIC_1, true) => match since {
                Since::SameBoot => Err(Why::OldKind),
                Since::Restarted => Ok(Left::Void(self)),
                Since::Unsure => Err(Why::Unsure),
            },
            (MAGIC_2 | MAGIC | MAGIC_AWAY, false) => self.judge_session(mark, since),
            (MAGIC_1 | MAGIC_2 | MAGIC | MAGIC_AWAY, _) => Err(Why::Other),
            _ => Err(Why::Strange),
        }
    }

    /// Returns the boot in which it was written.
    fn witness(&self) -> Witness {
        let number = u128::from(self.word(BOOT_WORD)) | u128::from(self.word(BOOT_WORD + 1)) << 64;
        if [MAGIC, MAGIC_AWAY].contains(&self.word(0)) {
            return Witness {
                number,
                host: Some(self.word(HOST_WORD)),
                started_ms: Some(self.word(STARTED_WORD) as i64),
                alive_ms: self.word(ALIVE_WORD) as i64,
                is_missed: self.live_number() != 0,
            };
        }
        let alive_ms = self.metadata.mtime() * 1000 + self.metadata.mtime_nsec() / 1_000_000;
        Witness { number, host: None, started_ms: None, alive_ms, is_missed: false }
    }

    /// Returns whether the image is the file that was served. If both the image and this file have
    /// changed inode numbers, both have been moved, or their file system has renumbered them.
    fn is_of_this_file(&self) -> bool {
        let has_moved = [MAGIC, MAGIC_AWAY].contains(&self.word(0))
            && self.word(OWN_INODE_WORD) != self.metadata.ino();
        self.word(INODE_WORD) == self.image.0 || has_moved
    }

    fn judge_session(self, header: Mark, since: Since) -> Result<Left, Why> {
        let known = self.mark().ok_or(Why::Strange)?;
        let is_its = known.is_akin(header) && self.is_of_this_file();
        let is_its = mutated("qcow2.redo.session-not-compared", is_its, true);
        if !is_its {
            return Err(Why::Other);
        }
        match since {
            Since::SameBoot | Since::Unsure if self.is_away() && self.live.is_none() => {
                return Err(Why::Away);
            }
            Since::SameBoot => {}
            Since::Restarted => {
                warn!(
                    "{}: the host has been restarted since; what was not flushed is as the medium \
                     has it",
                    self.path().display()
                );
                return Ok(Left::Void(self));
            }
            Since::Unsure => {
                let refuses = mutated("qcow2.redo.reads-what-is-not-sure-as-nothing", true, false);
                return if refuses { Err(Why::Unsure) } else { Ok(Left::Void(self)) };
            }
        }
        // The interrupted commit may have written its mark.
        let is_recent = header == known || header == known.next();
        let is_recent = mutated("qcow2.redo.session-not-compared", is_recent, true);
        let is_recent = mutated("qcow2.redo.commits-not-compared", is_recent, true);
        if !is_recent {
            warn!(
                "{}: it is of a later state of the image than this one, and is left out",
                self.path().display()
            );
            return Ok(Left::Void(self));
        }
        let records = self.records()?;
        Ok(Left::Changes(self, records))
    }

    fn records(&self) -> Result<Vec<RedoRecord>, Why> {
        let recorded = self.recorded();
        let (start, end) = (word_of(recorded, START_WORD), word_of(recorded, END_WORD));
        if start > end || end - start > RECORDS {
            return Err(Why::Strange);
        }
        let record = |position| {
            let slot = slot(position);
            RedoRecord {
                guest: GuestCluster(word_of(recorded, slot)),
                entry: word_of(recorded, slot + 1),
            }
        };
        Ok((start..end).map(record).collect())
    }
}
