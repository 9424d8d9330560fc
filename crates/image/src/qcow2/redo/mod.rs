//! The redo file: changes of the map that are not on the medium yet, for the daemon after a killed
//! one.
//!
//! A write is done when its data is in the file; the map that names it is written at the next
//! commit. A write would be lost if the daemon was killed in between, although the guest goes on
//! and the write has completed. So each change of the map also goes to a small file beside the
//! image, which is mapped into memory: the kernel keeps what was stored there when the process is
//! gone.
//!
//! Nothing is ever synced there, for nothing there may survive a power cut, which may have taken
//! the data: the file says for which boot of the host it is good, for which file, and which session
//! of it, as the header of the image does ([`mark`](super::mark)). How a file that is found is
//! used, and when an image is refused: [`recall()`].

mod recall;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub use self::recall::{Left, Memory, recall};
use super::mark::{Mark, boot_number};
use super::shape::GuestCluster;

/// Version 1 had no sessions.
const OLD_MAGIC: u64 = u64::from_le_bytes(*b"fsredo01");
const MAGIC: u64 = u64::from_le_bytes(*b"fsredo02");
/// Words of eight bytes before the first record.
const HEADER_WORDS: usize = 512;
/// The number of the boot: two words. So far, as in version 1.
const BOOT_WORD: usize = 1;
/// Device and inode of the image.
const PLACE_WORD: usize = 3;
/// The mark that the header has, or had before the commit that is being made.
const MARK_WORD: usize = 5;
const START_WORD: usize = 6;
const END_WORD: usize = 7;
/// Records in the ring: two words each, a cluster of the disk and its entry.
const RECORDS: u64 = 1 << 18;
const WORDS: usize = HEADER_WORDS + 2 * RECORDS as usize;

/// The file beside an image. Positions count records since it was made.
pub struct Redo {
    words: NonNull<AtomicU64>,
    path: PathBuf,
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

/// Where the file of an image is: beside the image itself, by whichever links it was found.
pub fn path_of(image: &Path) -> io::Result<PathBuf> {
    let mut name = image.canonicalize()?.into_os_string();
    name.push(".redo");
    Ok(name.into())
}

/// Which file the image is.
fn place_of(image: &Path) -> io::Result<[u64; 2]> {
    let file = std::fs::metadata(image)?;
    Ok([file.dev(), file.ino()])
}

/// The words of a record.
fn slot(position: u64) -> usize {
    HEADER_WORDS + 2 * (position % RECORDS) as usize
}

impl Redo {
    /// Begins a session of the image at `image`, whose header must have no mark: whatever is there
    /// is void. The header is to have [`mark`](Self::mark) before the first change.
    pub fn begin(image: &Path) -> io::Result<Self> {
        let (boot, place, mark) = (boot_number()?, place_of(image)?, Mark::begin()?);
        let mut redo = Self::map(path_of(image)?, mark)?;
        let words = [boot as u64, (boot >> 64) as u64, place[0], place[1], mark.bits(), 0, 0];
        redo.store(0, 0);
        for (index, word) in words.into_iter().enumerate() {
            redo.store(BOOT_WORD + index, word);
        }
        redo.store(0, MAGIC);
        (redo.start, redo.end) = (0, 0);
        Ok(redo)
    }

    /// Goes on with what [`recall`] has found.
    pub fn resume(image: &Path) -> io::Result<Self> {
        let mut redo = Self::map(path_of(image)?, Mark::begin()?)?;
        let mark = Mark::of(redo.load(MARK_WORD));
        redo.mark = mark.ok_or_else(|| io::Error::other("another one has written it"))?;
        (redo.start, redo.end) = (redo.load(START_WORD), redo.load(END_WORD));
        Ok(redo)
    }

    fn map(path: PathBuf, mark: Mark) -> io::Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(&path)?;
        let bytes = (WORDS * 8) as u64;
        if file.metadata()?.len() != bytes {
            file.set_len(0)?;
            file.set_len(bytes)?;
        }
        reserve(&file, bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, placed by the kernel, of a file that is long enough and that only
        // the holder of the image's lock touches.
        let address = unsafe {
            mmap(std::ptr::null_mut(), WORDS * 8, protection, MapFlags::SHARED, &file, 0)?
        };
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { words, path, mark, start: 0, end: 0 })
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
    }

    /// What comes before this position is durable.
    pub fn forget_before(&mut self, position: u64) {
        self.start = position;
        self.store(START_WORD, position);
    }

    /// Removes the file: the image has been closed in order and is complete by itself.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Drop for Redo {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map` with this length, and nothing refers to it.
        let _ = unsafe { munmap(self.words.as_ptr().cast(), WORDS * 8) };
    }
}

/// Gives the file its space now: on a full host, a store to a page without space would end the
/// process.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => {
            let mut content = vec![0; bytes as usize];
            file.read_exact_at(&mut content, 0)?;
            file.write_all_at(&content, 0)
        }
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod lengths;

#[cfg(test)]
mod tests {
    use super::recall::Lost;
    use super::*;

    fn record(number: u64) -> RedoRecord {
        RedoRecord { guest: GuestCluster(number), entry: number << 16 }
    }

    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.qcow2");
        std::fs::write(&image, "").unwrap();
        (place, image)
    }

    fn left(image: &Path, mark: Mark) -> Result<Left, Lost> {
        recall(Memory::Beside(image), mark.bits())
    }

    /// On a full host a store to a page without space would end the process.
    #[test]
    fn the_file_has_its_space_from_the_start() {
        let (_place, image) = place();
        let redo = Redo::begin(&image).unwrap();
        let given = std::fs::metadata(&redo.path).unwrap();
        assert!(given.blocks() * 512 >= given.len(), "{} blocks", given.blocks());
    }

    #[test]
    fn a_session_that_has_ended_maps_nothing() {
        let (_place, image) = place();
        let redo = Redo::begin(&image).unwrap();
        let path = redo.path.to_str().unwrap().to_owned();
        let is_mapped = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().any(|line| line.contains(&path))
        };
        assert!(is_mapped());
        drop(redo);
        assert!(!is_mapped());
    }

    #[test]
    fn records_outlive_the_process_that_wrote_them() {
        let (_place, image) = place();
        let mut redo = Redo::begin(&image).unwrap();
        (0..5).for_each(|number| redo.append(record(number)));
        redo.forget_before(2);
        let mark = redo.mark();
        drop(redo);
        let expected = Left::Changes((2..5).map(record).collect());
        assert_eq!(left(&image, mark).unwrap(), expected);
        assert_eq!(left(&image, mark.next()).unwrap(), expected, "killed in its first commit");
        let mut redo = Redo::resume(&image).unwrap();
        assert_eq!((redo.mark(), redo.room()), (mark, RECORDS - 3));
        for number in 0..RECORDS - 3 {
            redo.append(record(number));
        }
        assert_eq!(redo.room(), 0);
        let found = left(&image, mark).unwrap();
        assert_eq!(found.changes().last(), Some(&record(RECORDS - 4)));
        redo.set_committed(mark.next(), redo.end());
        assert_eq!(redo.room(), RECORDS);
        assert_eq!(left(&image, mark.next()).unwrap(), Left::Changes(vec![]));
        redo.remove().unwrap();
        assert!(!path_of(&image).unwrap().exists());
    }

    #[test]
    fn what_is_not_of_the_last_session_is_not_believed() {
        let (place, image) = place();
        let mut redo = Redo::begin(&image).unwrap();
        let first = redo.mark();
        redo.append(record(1));
        redo.set_committed(first.next().next(), 0);
        assert_eq!(left(&image, first).unwrap(), Left::Nothing, "an earlier state of the image");
        assert!(matches!(left(&image, Mark::begin().unwrap()), Err(Lost::Other)));
        assert_eq!(recall(Memory::Beside(&image), 0).unwrap(), Left::Nothing, "not marked");
        assert!(matches!(recall(Memory::None, redo.mark().bits()), Err(Lost::Missing)));
        let mark = redo.mark();
        redo.store(BOOT_WORD + 1, 77);
        assert_eq!(left(&image, mark).unwrap(), Left::Nothing, "another boot");
        std::fs::copy(&image, place.path().join("b")).unwrap();
        std::fs::rename(place.path().join("b"), &image).unwrap();
        assert!(matches!(left(&image, mark), Err(Lost::Other)), "another file");
        std::fs::remove_file(path_of(&image).unwrap()).unwrap();
        assert!(matches!(left(&image, mark), Err(Lost::Missing)));
        let other_boot = Mark::of(mark.bits() ^ 1 << 48).unwrap();
        assert_eq!(left(&image, other_boot).unwrap(), Left::Nothing);
    }

    #[test]
    fn what_cannot_be_read_is_not_passed_over() {
        let (_place, image) = place();
        let redo = Redo::begin(&image).unwrap();
        let mark = redo.mark();
        redo.store(START_WORD, 1);
        assert!(matches!(left(&image, mark), Err(Lost::Strange)));
        redo.store(0, 5);
        assert!(matches!(left(&image, mark), Err(Lost::Strange)));
        redo.store(0, OLD_MAGIC);
        assert!(matches!(left(&image, mark), Err(Lost::Other)));
        let old = Mark::of(1 << 63).unwrap();
        assert!(matches!(left(&image, old), Err(Lost::OldKind)));
        redo.store(BOOT_WORD, 77);
        assert_eq!(left(&image, old).unwrap(), Left::Nothing);
        std::fs::write(path_of(&image).unwrap(), "short").unwrap();
        assert!(matches!(left(&image, mark), Err(Lost::Strange)));
        std::fs::remove_file(path_of(&image).unwrap()).unwrap();
        std::fs::create_dir(path_of(&image).unwrap()).unwrap();
        assert!(matches!(left(&image, mark), Err(Lost::Unreadable(_))));
    }
}
