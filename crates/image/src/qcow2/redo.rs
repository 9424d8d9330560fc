//! What a killed daemon remembers: changes of the map that are not on the medium yet.
//!
//! A write is done when its data is in the file; the map that names it is written at the next commit.
//! A daemon that is killed in between would forget the write, although the guest lives on and has
//! been told that it is done. So each change of the map also goes to a small file beside the image,
//! which is mapped into memory: the kernel keeps what was stored there when the process is gone.
//!
//! Nothing is ever synced there, for nothing there may survive a power cut, which may have taken the
//! data: the file says for which boot of the host it is good, and for which file. Other software
//! that writes the image meanwhile clears a bit of its header that it does not know
//! ([`AUTOCLEAR_REDO`](super::header::AUTOCLEAR_REDO)); without the bit, the file is ignored too.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::shape::GuestCluster;

const MAGIC: u64 = u64::from_le_bytes(*b"fsredo01");
/// Words of eight bytes before the first record.
const HEADER_WORDS: usize = 512;
const START_WORD: usize = 5;
const END_WORD: usize = 6;
/// Records in the ring: two words each, a cluster of the disk and its entry.
const RECORDS: u64 = 1 << 18;
const WORDS: usize = HEADER_WORDS + 2 * RECORDS as usize;

/// The file beside an image. Positions count records since it was made.
pub struct Redo {
    words: NonNull<AtomicU64>,
    path: PathBuf,
    start: u64,
    end: u64,
}

// SAFETY: the mapping belongs to this value alone, and is reached through atomics.
unsafe impl Send for Redo {}

/// What an image is opened with, besides its file.
#[derive(Default)]
pub enum Memory {
    /// Nothing: writes that are not flushed do not survive a killed daemon.
    #[default]
    None,
    /// To write it.
    File(Redo),
    /// To read it: what a killed daemon has left.
    Left(Vec<Record>),
}

/// A change of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub guest: GuestCluster,
    pub entry: u64,
}

impl Redo {
    /// Where the file of an image is.
    pub fn path_of(image: &Path) -> PathBuf {
        let mut name = image.as_os_str().to_owned();
        name.push(".redo");
        name.into()
    }

    /// Opens the file of the image at `image`, or makes it. What it holds is kept only if it is
    /// good for this boot and this image.
    pub fn open(image: &Path) -> io::Result<Self> {
        let path = Self::path_of(image);
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
        let mut redo = Self { words, path, start: 0, end: 0 };
        let identity = identity_of(image)?;
        let known = identity.iter().enumerate().all(|(index, word)| redo.load(index) == *word);
        let (start, end) = (redo.load(START_WORD), redo.load(END_WORD));
        if known && start <= end && end - start <= RECORDS {
            (redo.start, redo.end) = (start, end);
        } else {
            redo.store(START_WORD, 0);
            redo.store(END_WORD, 0);
            for (index, word) in identity.into_iter().enumerate() {
                redo.store(index, word);
            }
        }
        Ok(redo)
    }

    /// What a killed daemon has left for whoever only reads the image.
    pub fn peek(image: &Path) -> Vec<Record> {
        let (Ok(bytes), Ok(identity)) = (std::fs::read(Self::path_of(image)), identity_of(image))
        else {
            return Vec::new();
        };
        let (words, _) = bytes.as_chunks::<8>();
        let load = |index: usize| words.get(index).map_or(0, |word| u64::from_ne_bytes(*word));
        let known = identity.iter().enumerate().all(|(index, word)| load(index) == *word);
        let (start, end) = (load(START_WORD), load(END_WORD));
        if !known || start > end || end - start > RECORDS {
            return Vec::new();
        }
        let record = |position| {
            let slot = Self::slot(position);
            Record { guest: GuestCluster(load(slot)), entry: load(slot + 1) }
        };
        (start..end).map(record).collect()
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

    fn slot(position: u64) -> usize {
        HEADER_WORDS + 2 * (position % RECORDS) as usize
    }

    /// Changes that no commit has made durable, from the oldest on.
    pub fn records(&self) -> Vec<Record> {
        let record = |position| {
            let slot = Self::slot(position);
            Record { guest: GuestCluster(self.load(slot)), entry: self.load(slot + 1) }
        };
        (self.start..self.end).map(record).collect()
    }

    /// Remembers a change.
    ///
    /// # Panics
    /// If there is no room: [`is_tight`](Self::is_tight) says so long before.
    pub fn append(&mut self, record: Record) {
        assert!(self.end - self.start < RECORDS, "room for a change of the map");
        let slot = Self::slot(self.end);
        self.store(slot, record.guest.0);
        self.store(slot + 1, record.entry);
        self.end += 1;
        // Last, so that whoever finds the record finds all of it.
        self.store(END_WORD, self.end);
    }

    /// Whether changes should wait for a commit. What is under way still has room.
    pub fn is_tight(&self) -> bool {
        self.end - self.start > RECORDS / 2
    }

    /// The position of the next record.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What comes before this position is durable.
    pub fn forget_before(&mut self, position: u64) {
        self.start = position;
        self.store(START_WORD, position);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.forget_before(self.end);
    }

    /// The image is closed in order: the file has nothing to say any more.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Drop for Redo {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open` with this length, and nobody refers to it.
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

/// What the records are good for: this boot of the host, and this file.
fn identity_of(image: &Path) -> io::Result<[u64; START_WORD]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let boot = u128::from_str_radix(&text.trim().replace('-', ""), 16)
        .map_err(|_| io::Error::other("the host's boot has no number"))?;
    let file = std::fs::metadata(image)?;
    Ok([MAGIC, boot as u64, (boot >> 64) as u64, file.dev(), file.ino()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(number: u64) -> Record {
        Record { guest: GuestCluster(number), entry: number << 16 }
    }

    #[test]
    fn records_outlive_whoever_wrote_them() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.qcow2");
        std::fs::write(&image, "").unwrap();
        let mut redo = Redo::open(&image).unwrap();
        (0..5).for_each(|number| redo.append(record(number)));
        redo.forget_before(2);
        drop(redo);
        let mut redo = Redo::open(&image).unwrap();
        assert_eq!(redo.records(), [record(2), record(3), record(4)]);
        assert_eq!(Redo::peek(&image), redo.records());
        for number in 0..RECORDS - 3 {
            redo.append(record(number));
        }
        assert!(redo.is_tight());
        assert_eq!(redo.records().last(), Some(&record(RECORDS - 4)));
        redo.clear();
        assert!(!redo.is_tight() && redo.records().is_empty());
        redo.remove().unwrap();
        assert!(!Redo::path_of(&image).exists());
    }

    #[test]
    fn records_of_another_image_or_another_boot_are_ignored() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("a.qcow2");
        std::fs::write(&image, "").unwrap();
        let mut redo = Redo::open(&image).unwrap();
        redo.append(record(1));
        redo.store(1, 77);
        drop(redo);
        assert!(Redo::open(&image).unwrap().records().is_empty(), "another boot");
        let mut redo = Redo::open(&image).unwrap();
        redo.append(record(1));
        drop(redo);
        std::fs::rename(&image, place.path().join("b")).unwrap();
        std::fs::write(&image, "").unwrap();
        assert!(Redo::open(&image).unwrap().records().is_empty(), "another file");
    }
}
