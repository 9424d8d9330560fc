//! The redo file: changes of the map that are not on the medium yet, for the daemon after a killed
//! one.
//!
//! A write is done when its data is in the file; the map that names it is written at the next
//! commit. A write would be lost if the daemon was killed in between, although the guest goes on
//! and the write has completed. So each change of the map also goes to a small file beside the
//! image, which is mapped into memory: the kernel keeps what was stored there when the process is
//! gone.
//!
//! No record is ever synced, for none may survive a power cut, which may have taken the data: the
//! file says in which boot of which host it was written ([`boot`](super::boot)), for which file,
//! and for which session of it, as the header of the image does ([`mark`](super::mark)). What it is
//! called and which files are left alone: [`folder`]. How a file that is found is used, and when an
//! image is refused: [`recall()`].

mod folder;
mod layout;
mod lost;
mod recall;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{Guarded, mutant};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use self::folder::{Folder, flaw_of, lock, name_of};
use self::layout::*;
pub use self::lost::{Lost, Why};
pub use self::recall::{Found, Left, recall};
use super::boot::{Boot, Clocks};
use super::mark::Mark;
use super::shape::GuestCluster;

/// Where changes of the map may be, besides the image.
#[derive(Clone, Copy, Debug, Default)]
pub enum Memory<'a> {
    /// Nowhere: writes that are not flushed do not survive a killed daemon.
    #[default]
    None,
    /// In a redo file beside the image at this path.
    Beside(&'a Path),
}

/// The file beside an image. Positions count records since it was made.
pub struct Redo {
    words: NonNull<AtomicU64>,
    /// A page of it that is lost (a file that was made shorter, a medium that fails) does not end
    /// the process. What is stored there is gone then, and a start after a kill finds a file that
    /// is not whole, and refuses the image. Taken before the mapping ends.
    guard: Option<Guarded>,
    folder: Folder,
    name: OsString,
    /// Locked as long as it is open.
    file: File,
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

/// Names that are tried for a new file.
const NAMES_MAX: u32 = 16;

impl Redo {
    /// Begins a session of the image at `image`. The header is to have [`mark`](Self::mark) before
    /// the first change.
    pub fn begin(image: &Path) -> io::Result<Self> {
        let (boot, inode) = (Boot::read()?, std::fs::metadata(image)?.ino());
        let folder = Folder::of(image)?;
        let (name, file, mark) = create(&folder)?;
        if let Err(error) = lock(&file).and_then(|()| reserve(&file)) {
            let _ = folder.remove(&name, &file);
            return Err(error);
        }
        let redo = Self::map(folder, name, file, mark)?;
        redo.introduce(&boot, inode, &image.canonicalize()?)?;
        redo.store(MARK_WORD, mark.bits());
        redo.store(0, MAGIC);
        // The header is not to name a file that a power cut takes: that would look as if its owner
        // had removed it.
        let is_durable = match mutant("qcow2.redo.named-before-it-is-durable") {
            true => Ok(()),
            false => redo.sync(),
        };
        match is_durable {
            Ok(()) => Ok(redo),
            Err(error) => redo.remove().and(Err(error)),
        }
    }

    /// Goes on with what [`recall`] has found.
    pub fn resume(image: &Path, found: &Found) -> Result<Self, Lost> {
        let lost = |why| Lost { redo: found.path(), why };
        let unreadable = |error| lost(Why::Unreadable(error));
        let file = found.folder.open(&found.name, OFlags::RDWR).map_err(unreadable)?;
        let now = file.metadata().map_err(unreadable)?;
        // Nobody else can make it shorter, which would end this process.
        if let Some(flaw) = flaw_of(&now, None) {
            return Err(lost(Why::Foreign(flaw)));
        }
        let is_same = found.is_in(&now) && now.len() == BYTES;
        let mark = found.mark().filter(|_| is_same).ok_or_else(|| lost(Why::Strange))?;
        Self::take_over(image, found, file, mark).map_err(unreadable)
    }

    fn take_over(image: &Path, found: &Found, file: File, mark: Mark) -> io::Result<Self> {
        let (boot, inode) = (Boot::read()?, std::fs::metadata(image)?.ino());
        lock(&file)?;
        reserve(&file)?;
        let mut redo = Self::map(Folder::of(image)?, found.name.clone(), file, mark)?;
        (redo.start, redo.end) = (redo.load(START_WORD), redo.load(END_WORD));
        redo.introduce(&boot, inode, &image.canonicalize()?)?;
        redo.store(0, MAGIC);
        redo.take_name();
        Ok(redo)
    }

    fn map(folder: Folder, name: OsString, file: File, mark: Mark) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, placed by the kernel, of a file that is long enough, that only
        // this user can make shorter, and that is locked.
        let address = unsafe {
            mmap(std::ptr::null_mut(), WORDS * 8, protection, MapFlags::SHARED, &file, 0)?
        };
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: it was just mapped, so long, and stays until `drop`.
        let guard = unsafe { Guarded::new(address.cast(), WORDS * 8, rustix::param::page_size()) };
        let guard = (!mutant("qcow2.redo.not-guarded")).then_some(guard);
        Ok(Self { words, guard, folder, name, file, mark, start: 0, end: 0 })
    }

    /// Says in it where and of what file it is.
    fn introduce(&self, boot: &Boot, inode: u64, path: &Path) -> io::Result<()> {
        self.store(HOST_WORD, boot.host);
        self.show_life();
        self.store(INODE_WORD, inode);
        self.store(OWN_INODE_WORD, self.file.metadata()?.ino());
        self.store(BOOT_WORD, boot.number as u64);
        self.store(BOOT_WORD + 1, (boot.number >> 64) as u64);
        let room = (HEADER_WORDS - PATH_WORD) * 8 - 1;
        let path = path.as_os_str().as_bytes();
        for (index, piece) in path[..path.len().min(room)].chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.store(PATH_WORD + index, u64::from_ne_bytes(word));
        }
        Ok(())
    }

    /// Says that the host is up.
    fn show_life(&self) {
        let Clocks { started_ms, now_ms } = Clocks::read();
        self.store(STARTED_WORD, started_ms as u64);
        self.store(ALIVE_WORD, now_ms as u64);
    }

    /// Earlier versions called it by the image. Where that cannot be changed it is found all the
    /// same.
    fn take_name(&mut self) {
        let name = name_of(self.mark);
        if name != self.name && self.folder.rename(&self.name, &name).is_ok() {
            self.name = name;
        }
    }

    #[expect(clippy::disallowed_methods, reason = "not an image; no guest is at work yet")]
    fn sync(&self) -> io::Result<()> {
        #[cfg(test)]
        if HOST_FAILS_TO_SYNC.get() {
            return Err(Errno::IO.into());
        }
        self.file.sync_all()?;
        self.folder.sync();
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

    /// The mark that the header has after the last commit.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// Remembers a change.
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

    /// How many more changes there is room for.
    pub fn room(&self) -> u64 {
        RECORDS - (self.end - self.start)
    }

    /// The position of the next record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// A commit has made durable what comes before this position, and the header has this mark.
    pub fn set_committed(&mut self, mark: Mark, position: u64) {
        self.mark = mark;
        self.store(MARK_WORD, mark.bits());
        self.forget_before(position);
        self.show_life();
    }

    /// What comes before this position is durable.
    pub fn forget_before(&mut self, position: u64) {
        self.start = position;
        self.store(START_WORD, position);
    }

    /// Removes the file: the image has been closed in order and is complete by itself.
    pub fn remove(self) -> io::Result<()> {
        self.folder.remove(&self.name, &self.file)
    }
}

impl Drop for Redo {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the mapping was made in `map` with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), WORDS * 8) };
    }
}

/// Makes a file for a session with a number that no other one in the folder has.
fn create(folder: &Folder) -> io::Result<(OsString, File, Mark)> {
    for _ in 0..NAMES_MAX {
        let mark = Mark::begin()?;
        let name = name_of(mark);
        match folder.create(&name) {
            Ok(file) => {
                // A host that gives it to another user would have it refused after a kill.
                return match flaw_of(&file.metadata()?, None) {
                    None => Ok((name, file, mark)),
                    Some(flaw) => {
                        let _ = folder.remove(&name, &file);
                        Err(io::Error::other(flaw))
                    }
                };
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Gives the file its length and its space now: on a full host, a store to a page without space
/// would end the process.
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
