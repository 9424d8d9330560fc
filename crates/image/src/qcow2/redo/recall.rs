//! Reads the redo file that a killed daemon has left, and compares it with the header before
//! anything is written. If changes may be missing, the image is refused: without them completed
//! writes would be lost, and with those of another session two clusters of the disk would share one
//! of the file.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flowstone_block::{Error, ErrorKind, mutant};
use rustix::fs::OFlags;
use tracing::warn;

use super::super::mark::{Mark, boot_number};
use super::super::shape::GuestCluster;
use super::{
    BOOT_WORD, END_WORD, MAGIC, MARK_WORD, OLD_MAGIC, PLACE_WORD, RECORDS, RedoRecord, START_WORD,
    WORDS, path_of, place_of, slot,
};

/// Where changes of the map may be, besides the image.
#[derive(Clone, Copy, Debug, Default)]
pub enum Memory<'a> {
    /// Nowhere: writes that are not flushed do not survive a killed daemon.
    #[default]
    None,
    /// In the redo file of the image at this path.
    Beside(&'a Path),
}

impl Memory<'_> {
    /// The redo file of the image `name`, for messages.
    pub fn redo_of(&self, name: &str) -> String {
        match self {
            Self::Beside(image) => path_of(image).ok().map(|path| path.display().to_string()),
            Self::None => None,
        }
        .unwrap_or_else(|| format!("{name}.redo"))
    }
}

/// What a killed daemon has left.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: the image by itself is all there is.
    Nothing,
    /// Changes of the map that the image may not have yet, from the oldest on.
    Changes(Vec<RedoRecord>),
}

impl Left {
    pub fn changes(&self) -> &[RedoRecord] {
        match self {
            Self::Nothing => &[],
            Self::Changes(changes) => changes,
        }
    }
}

/// Why the redo file of a killed daemon cannot be used.
#[derive(Debug)]
pub enum Lost {
    Missing,
    /// It is there, and of another session or of another file.
    Other,
    /// A version without session numbers has written it.
    OldKind,
    /// It is there, and cannot be read.
    Unreadable(io::Error),
    /// It is there, and not what any version writes.
    Strange,
}

impl Lost {
    /// Whether a repair may go on without the redo file: it will not be found again, as far as is
    /// known.
    pub fn may_be_given_up(&self) -> bool {
        matches!(self, Self::Missing | Self::Other)
    }

    /// As an error about the image `name`.
    pub fn explain(&self, name: &str, memory: Memory<'_>) -> Error {
        let redo = memory.redo_of(name);
        let killed = "its daemon was killed, and writes that it had completed may be missing";
        let (why, advice) = match self {
            Self::Missing => (
                format!("{killed}: {redo} is not there"),
                "bring that file back and serve the image, or go on without with `flowstone check --repair`",
            ),
            Self::Other => (
                format!("{killed}: {redo} is not of its last session"),
                "bring the right file back, or go on without with `flowstone check --repair`",
            ),
            Self::OldKind => (
                format!("{killed}: an earlier version has written {redo}"),
                "serve the image once with that version, or remove the file and run `flowstone check --repair`",
            ),
            Self::Unreadable(error) => (
                format!("{killed}: cannot read {redo}: {error}"),
                "make it readable for this user and try again",
            ),
            Self::Strange => (
                format!("{killed}: {redo} is damaged"),
                "restore it, or remove it and run `flowstone check --repair`",
            ),
        };
        let kind = match self {
            Self::Unreadable(_) => ErrorKind::Host,
            Self::OldKind => ErrorKind::Unsupported,
            Self::Missing | Self::Other | Self::Strange => ErrorKind::Damaged,
        };
        Error::new(kind, name, why, advice)
    }
}

/// What a killed daemon has left, for an image with these autoclear features.
pub fn recall(memory: Memory<'_>, autoclear: u64) -> Result<Left, Lost> {
    let Some(mark) = Mark::of(autoclear) else { return Ok(Left::Nothing) };
    let boot = boot_number().map_err(Lost::Unreadable)?;
    if !mark.is_old_kind() && !mark.may_be_of(boot) {
        // A power cut may have taken the data, and what commits made durable is what counts.
        return Ok(Left::Nothing);
    }
    let Memory::Beside(image) = memory else { return Err(Lost::Missing) };
    Found::read(image)?.judge(mark, boot, image)
}

/// What is in a redo file.
struct Found {
    bytes: Vec<u8>,
}

impl Found {
    fn read(image: &Path) -> Result<Self, Lost> {
        let open = || {
            let nofollow = OFlags::NOFOLLOW.bits() as i32;
            File::options().read(true).custom_flags(nofollow).open(path_of(image)?)
        };
        let file = open().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Lost::Missing,
            _ => Lost::Unreadable(error),
        })?;
        let mut bytes = Vec::new();
        let most = (WORDS * 8) as u64 + 1;
        file.take(most).read_to_end(&mut bytes).map_err(Lost::Unreadable)?;
        if bytes.len() != WORDS * 8 {
            return Err(Lost::Strange);
        }
        Ok(Self { bytes })
    }

    fn word(&self, index: usize) -> u64 {
        let bytes = self.bytes[index * 8..][..8].try_into();
        u64::from_ne_bytes(bytes.expect("eight bytes"))
    }

    fn judge(&self, mark: Mark, boot: u128, image: &Path) -> Result<Left, Lost> {
        let is_of_this_boot = self.boot() == boot;
        match (self.word(0), mark.is_old_kind()) {
            (OLD_MAGIC, true) if is_of_this_boot => Err(Lost::OldKind),
            (OLD_MAGIC, true) => Ok(Left::Nothing),
            (MAGIC, false) => self.judge_session(mark, is_of_this_boot, image),
            (MAGIC | OLD_MAGIC, _) => Err(Lost::Other),
            _ => Err(Lost::Strange),
        }
    }

    fn boot(&self) -> u128 {
        u128::from(self.word(BOOT_WORD)) | u128::from(self.word(BOOT_WORD + 1)) << 64
    }

    fn judge_session(
        &self,
        header: Mark,
        is_of_this_boot: bool,
        image: &Path,
    ) -> Result<Left, Lost> {
        let place = place_of(image).map_err(Lost::Unreadable)?;
        let is_of_this_file = [PLACE_WORD, PLACE_WORD + 1].map(|index| self.word(index)) == place;
        let known = Mark::of(self.word(MARK_WORD)).ok_or(Lost::Strange)?;
        let compared = !mutant("qcow2.redo.session-not-compared");
        if compared && !(known.is_akin(header) && is_of_this_file) {
            return Err(Lost::Other);
        }
        if !is_of_this_boot {
            return Ok(Left::Nothing);
        }
        // The commit that was being made may have come so far.
        let is_recent = header == known || header == known.next();
        let compared = compared && !mutant("qcow2.redo.commits-not-compared");
        if !is_recent && compared {
            warn!(
                "{}: an earlier state of the image than the one whose daemon was killed: what \
                 is in its redo file is left out",
                image.display()
            );
            return Ok(Left::Nothing);
        }
        self.records().map(Left::Changes)
    }

    fn records(&self) -> Result<Vec<RedoRecord>, Lost> {
        let (start, end) = (self.word(START_WORD), self.word(END_WORD));
        if start > end || end - start > RECORDS {
            return Err(Lost::Strange);
        }
        let record = |position| {
            let slot = slot(position);
            RedoRecord { guest: GuestCluster(self.word(slot)), entry: self.word(slot + 1) }
        };
        Ok((start..end).map(record).collect())
    }
}
