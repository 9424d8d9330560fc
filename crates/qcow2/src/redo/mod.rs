//! The redo file: changes of the map that are not on the medium yet, for the daemon that follows a
//! killed one.
//!
//! A write completes when its data is in the file; the map that names it is written at the next
//! commit. If the daemon was killed in between, the completed write would be lost, although the
//! guest goes on. So each change of the map also goes to a small file beside the image, which is
//! mapped into memory: the kernel keeps stores to it when the process is gone.
//!
//! No record is ever synced, for none may survive a power cut, which may have taken the data: the
//! file states in which boot of which host it was written ([`boot`](super::boot)), for which file,
//! and for which session of it, as the header of the image does ([`mark`](super::mark)). Its name,
//! and which files are left alone: [`folder`]. The file left in the memory of the host, and when
//! that holds the changes themselves: [`live`]. How a redo file is used when found, and when an
//! image is refused: [`recall()`].

mod folder;
mod layout;
mod live;
mod lost;
mod recall;

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{Guarded, mutated};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use self::folder::{Folder, Named, flaw_of, lock, name_of};
use self::layout::*;
pub use self::lost::{Lost, Why};
pub use self::recall::{Found, Left, recall};
use super::boot::{Boot, Clocks, random_number};
use super::mark::Mark;
use super::shape::GuestCluster;

/// An image, and the places where its session keeps data for the next one.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Path of the image.
    pub image: &'a Path,
    /// Folders in the memory of the host to try.
    pub folders: &'a [Cow<'static, str>],
    /// Returns whether a mapping of this file may wait for a server.
    pub asks_server: fn(&File) -> bool,
}

impl<'a> Place<'a> {
    /// The image at this path, with the usual folders.
    pub fn of(image: &'a Path) -> Self {
        Self { image, folders: &live::FOLDERS, asks_server: flowstone_fileio::may_ask_a_server }
    }
}

/// The redo file of a session. Positions count records since its creation.
pub struct Redo {
    words: NonNull<AtomicU64>,
    /// Guards the mapping: a lost page (a truncated file, a failing medium) does not end the
    /// process. Stores to it are lost then, and an open after a kill finds an incomplete file, and
    /// refuses the image. Dropped before the mapping ends.
    guard: Option<Guarded>,
    /// The file beside the image. Locked as long as it is open.
    beside: Named,
    /// The file in the memory of the host.
    live: Option<Named>,
    /// Whether the records are in `live`, and not beside the image.
    is_away: bool,
    mark: Mark,
    start: u64,
    end: u64,
}

// SAFETY: the mapping belongs to this value alone, and is reached through atomics.
unsafe impl Send for Redo {}

/// A change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoRecord {
    pub guest: GuestCluster,
    pub entry: u64,
}

#[cfg(test)]
thread_local! {
    /// No redo file of this thread becomes durable.
    pub static HOST_FAILS_TO_SYNC: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Number of names tried for a new file.
const NAMES_MAX: u32 = 16;

impl Redo {
    /// Begins a session of an image. The header must have [`mark`](Self::mark) before the first
    /// change.
    pub fn begin(place: Place<'_>) -> io::Result<Self> {
        let (beside, mark) = create(place.image)?;
        lock(&beside.file)?;
        let is_away = (place.asks_server)(&beside.file);
        let is_away = mutated("qcow2.redo.maps-what-a-server-has", is_away, false);
        let live = live::create(place, mark, is_away);
        let live = if is_away { Some(live?) } else { live.ok() };
        let mut redo = Self::map(beside, live, is_away, mark)?;
        redo.introduce(place.image)?;
        redo.store(MARK_WORD, mark.bits());
        redo.store(0, MAGIC);
        redo.leave_number(new_number()?)?;
        // The header must not name a file that a power cut takes: that would look as if the file
        // had been removed.
        let syncs = mutated("qcow2.redo.named-before-it-is-durable", true, false);
        if syncs {
            redo.sync()?;
        }
        Ok(redo)
    }

    /// Resumes the session that [`recall`] has found.
    pub fn resume(place: Place<'_>, found: Found) -> Result<Self, Lost> {
        let redo = found.path();
        Self::take_over(place, found).map_err(|why| Lost { redo, why })
    }

    fn take_over(place: Place<'_>, found: Found) -> Result<Self, Why> {
        let (mark, number) = (found.mark().ok_or(Why::Strange)?, found.live_number());
        let (is_away, has_number) = (found.is_away(), found.live.is_some());
        let beside = open_ours(found.beside, found.bytes.len())?;
        lock(&beside.file)?;
        let live = match found.live {
            Some(live) if is_away => {
                let live = open_ours(live.named, live.bytes.len())?;
                lock(&live.file)?;
                Some(live)
            }
            Some(live) => Some(live.named),
            None => live::create(place, mark, is_away).ok(),
        };
        let mut redo = Self::map(beside, live, is_away, mark)?;
        (redo.start, redo.end) = (redo.load(START_WORD), redo.load(END_WORD));
        redo.introduce(place.image)?;
        redo.store(0, MAGIC);
        if is_away || !has_number {
            redo.leave_number(if has_number { number } else { new_number()? })?;
        }
        redo.keep();
        redo.take_name();
        Ok(redo)
    }

    /// Maps the file with the records.
    fn map(beside: Named, live: Option<Named>, is_away: bool, mark: Mark) -> io::Result<Self> {
        let file = match &live {
            Some(live) if is_away => &live.file,
            _ => &beside.file,
        };
        reserve(file)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, placed by the kernel, of a file that is long enough, that only
        // this user can truncate, and that is locked.
        let address = unsafe {
            mmap(std::ptr::null_mut(), WORDS * 8, protection, MapFlags::SHARED, file, 0)?
        };
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: it was just mapped, with this length, and stays until `drop`.
        let guard = unsafe { Guarded::new(address.cast(), WORDS * 8, rustix::param::page_size()) };
        let guard = mutated("qcow2.redo.not-guarded", Some(guard), None);
        Ok(Self { words, guard, beside, live, is_away, mark, start: 0, end: 0 })
    }

    /// Keeps the files on drop: the mark of the session is about to be written.
    pub fn keep(&mut self) {
        self.beside.keep();
        self.live.iter_mut().for_each(Named::keep);
    }

    /// Stores this number in the memory of the host, if possible, and then in the redo file.
    fn leave_number(&mut self, number: u64) -> io::Result<()> {
        let mut header = self.header();
        let set = |header: &mut [u8], index: usize, word: u64| {
            header[index * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        };
        set(&mut header, LIVE_WORD, number);
        if self.is_away {
            self.store(LIVE_WORD, number);
            set(&mut header, 0, MAGIC_AWAY);
            return self.beside.file.write_all_at(&header, 0);
        }
        let left = |live: &Named| live.file.write_all_at(&header, 0).is_ok();
        self.live = self.live.take().filter(left);
        self.store(LIVE_WORD, if self.live.is_some() { number } else { 0 });
        Ok(())
    }

    fn header(&self) -> Vec<u8> {
        (0..HEADER_WORDS).flat_map(|index| self.load(index).to_ne_bytes()).collect()
    }

    /// Stores the identities of host, boot and image in the file.
    fn introduce(&self, image: &Path) -> io::Result<()> {
        let boot = Boot::read()?;
        self.store(HOST_WORD, boot.host);
        self.show_life();
        self.store(INODE_WORD, std::fs::metadata(image)?.ino());
        self.store(OWN_INODE_WORD, self.beside.file.metadata()?.ino());
        self.store(BOOT_WORD, boot.number as u64);
        self.store(BOOT_WORD + 1, (boot.number >> 64) as u64);
        let room = (HEADER_WORDS - PATH_WORD) * 8 - 1;
        let path = image.canonicalize()?;
        let path = path.as_os_str().as_bytes();
        for (index, piece) in path[..path.len().min(room)].chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.store(PATH_WORD + index, u64::from_ne_bytes(word));
        }
        Ok(())
    }

    /// Stores the clocks, as proof that the host is up.
    fn show_life(&self) {
        let Clocks { started_ms, now_ms } = Clocks::read();
        self.store(STARTED_WORD, started_ms as u64);
        self.store(ALIVE_WORD, now_ms as u64);
    }

    /// Renames a file that an earlier version named after the image. If that fails it is found all
    /// the same.
    fn take_name(&mut self) {
        let name = name_of(self.mark);
        let beside = &mut self.beside;
        if name != beside.name && beside.folder.rename(&beside.name, &name).is_ok() {
            beside.name = name;
        }
    }

    #[expect(clippy::disallowed_methods, reason = "not an image; no guest is at work yet")]
    fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        if HOST_FAILS_TO_SYNC.get() {
            return Err(Errno::IO.into());
        }
        self.beside.file.sync_all()?;
        self.beside.folder.sync();
        Ok(())
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < WORDS, "a word of the file");
        // SAFETY: within the mapping, which lives as long as `self`.
        unsafe { self.words.add(index).as_ref() }
    }

    fn load(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    fn store(&self, index: usize, value: u64) {
        self.word(index).store(value, Ordering::Release);
    }

    /// Returns the mark that the header has after the last commit.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Appends a change.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room).
    pub fn append(&mut self, record: RedoRecord) {
        assert!(self.room() > 0, "room for a change of the map");
        let slot = slot(self.end);
        self.store(slot, record.guest.0);
        self.store(slot + 1, record.entry);
        self.end += 1;
        // Last, so that a reader that finds the record finds all of it.
        self.store(END_WORD, self.end);
    }

    /// Returns the number of further changes that fit.
    pub fn room(&self) -> u64 {
        RECORDS - (self.end - self.start)
    }

    /// Returns the position of the next record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Notes that a commit has made the records before this position durable, and that the header
    /// has this mark.
    pub fn set_committed(&mut self, mark: Mark, position: u64) {
        self.mark = mark;
        self.store(MARK_WORD, mark.bits());
        self.forget_before(position);
        self.show_life();
    }

    /// Drops the records before this position, which are durable.
    pub fn forget_before(&mut self, position: u64) {
        self.start = position;
        self.store(START_WORD, position);
    }

    /// Removes the file: the image has been closed cleanly and is complete without it.
    pub fn remove(mut self) -> io::Result<()> {
        let live = self.live.as_mut().map_or(Ok(()), Named::remove);
        self.beside.remove().and(live)
    }

    /// Returns whether a page of it has been lost, and with it possibly records.
    pub fn is_broken(&self) -> bool {
        self.guard.as_ref().is_some_and(Guarded::is_broken)
    }
}

impl Drop for Redo {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the mapping was made in `map` with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), WORDS * 8) };
    }
}

/// Creates a file for a session with a number that is unique in the folder.
fn create(image: &Path) -> io::Result<(Named, Mark)> {
    for _ in 0..NAMES_MAX {
        let mark = Mark::begin()?;
        match Named::create(Folder::of(image)?, name_of(mark)) {
            Ok(made) => return Ok((made, mark)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Opens a found file for writing, if no other user can truncate it.
fn open_ours(found: Named, bytes: usize) -> Result<Named, Why> {
    let opened = found.reopened()?;
    let now = opened.file.metadata()?;
    match flaw_of(&now, None) {
        Some(flaw) => Err(Why::Foreign(flaw)),
        None if now.len() != bytes as u64 => Err(Why::Strange),
        None => Ok(opened),
    }
}

/// Returns a random number for the file in the memory of the host: never 0.
fn new_number() -> io::Result<u64> {
    Ok(random_number()? as u64 | 1)
}

/// Allocates the whole file now: on a full host, a store to an unallocated page would end the
/// process.
fn reserve(file: &File) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, BYTES) {
        Err(Errno::OPNOTSUPP) => {
            file.set_len(BYTES)?;
            let mut content = vec![0; BYTES as usize];
            file.read_exact_at(&mut content, 0)?;
            file.write_all_at(&content, 0)
        }
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod lengths;
#[cfg(test)]
mod tests;
