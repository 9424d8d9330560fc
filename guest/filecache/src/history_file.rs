//! The usage history on disk, so that it survives a reboot: one file per source, written as a new
//! file that replaces the old one.
//!
//! ```text
//! "FLOWHIS1" | source: u32 length, bytes | u32 records |
//!     each: uses u32, bytes u64, inode u64, birth i64, path: u16 length, bytes | CRC32C of all
//! ```
//!
//! Numbers are little-endian. A file that is damaged, or of another version or source, is renamed
//! and ignored: the history is only an optimisation.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use flowstone_memory::mutated;

use crate::to_disk;

const MAGIC: &[u8; 8] = b"FLOWHIS1";
/// Size limit: the least used files are dropped.
const BYTES_MAX: usize = 16 << 20;

/// A record of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The inode number of the file.
    pub inode: u64,
    /// Its time of creation.
    pub birth: i64,
    /// The bytes of its copy at the last use.
    pub bytes: u64,
    /// Its number of uses.
    pub uses: u32,
    /// Its path at the last use, relative to the source.
    pub path: Box<[u8]>,
}

/// Encodes a history.
fn encode(source: &str, mut files: Vec<Remembered>) -> Vec<u8> {
    files.sort_by_key(|it| std::cmp::Reverse(it.uses));
    let mut records = Vec::new();
    let mut count: u32 = 0;
    for it in &files {
        let Ok(length) = u16::try_from(it.path.len()) else { continue };
        if records.len() + it.path.len() + 64 > BYTES_MAX {
            break;
        }
        records.extend(it.uses.to_le_bytes());
        records.extend(it.bytes.to_le_bytes());
        records.extend(it.inode.to_le_bytes());
        records.extend(it.birth.to_le_bytes());
        records.extend(length.to_le_bytes());
        records.extend(&*it.path);
        count += 1;
    }
    let mut all = MAGIC.to_vec();
    all.extend((source.len() as u32).to_le_bytes());
    all.extend(source.as_bytes());
    all.extend(count.to_le_bytes());
    all.extend(records);
    all.extend(crc32c::crc32c(&all).to_le_bytes());
    all
}

/// Decodes a history; the error is the reason why it is invalid.
fn decode(source: &str, all: &[u8]) -> Result<Vec<Remembered>, &'static str> {
    if all.first_chunk() != Some(MAGIC) {
        return Err("it is no history, or of another version");
    }
    let (body, sum) = all.split_last_chunk().ok_or("it is cut short")?;
    let is_whole = crc32c::crc32c(body) == u32::from_le_bytes(*sum);
    let is_whole = mutated("guest.history.skips-checksum", is_whole, true);
    if !is_whole {
        return Err("it is damaged");
    }
    let mut rest = &body[MAGIC.len()..];
    read_all(source, &mut rest).ok_or("it is of another source")
}

fn read_all(source: &str, rest: &mut &[u8]) -> Option<Vec<Remembered>> {
    let length = u32::from_le_bytes(take(rest)?) as usize;
    let named = rest.split_off(..length)?;
    if named != source.as_bytes() {
        return None;
    }
    let count = u32::from_le_bytes(take(rest)?);
    (0..count).map(|_| read_one(rest)).collect()
}

fn read_one(rest: &mut &[u8]) -> Option<Remembered> {
    let uses = u32::from_le_bytes(take(rest)?);
    let bytes = u64::from_le_bytes(take(rest)?);
    let inode = u64::from_le_bytes(take(rest)?);
    let birth = i64::from_le_bytes(take(rest)?);
    let length = u16::from_le_bytes(take(rest)?);
    let path = rest.split_off(..usize::from(length))?.into();
    Some(Remembered { inode, birth, bytes, uses, path })
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    rest.split_off(..N)?.try_into().ok()
}

/// The history file of a source.
pub struct HistoryFile {
    folder: PathBuf,
    source: String,
}

impl HistoryFile {
    /// Opens the folder of histories; created if absent, with access for its owner only.
    pub fn open(folder: &Path, source: String) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        fs::read_dir(folder)?;
        Ok(Self { folder: folder.to_owned(), source })
    }

    fn path(&self, ending: &str) -> PathBuf {
        let name = crc32c::crc32c(self.source.as_bytes());
        self.folder.join(format!("{name:08x}.{ending}"))
    }

    /// Loads the history. Logs one line if it is unusable.
    pub fn load(&self) -> Vec<Remembered> {
        let path = self.path("history");
        let read = match read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            Err(error) => Err(error.to_string()),
            Ok(all) => decode(&self.source, &all).map_err(str::to_owned),
        };
        read.unwrap_or_else(|why| {
            let aside = self.path("damaged");
            // If the rename fails, it is replaced by the next save.
            let _ = fs::rename(&path, &aside);
            eprintln!("{}: {why}; left aside as {}", path.display(), aside.display());
            Vec::new()
        })
    }

    /// Saves a history, which replaces the last one atomically.
    pub fn save(&self, files: Vec<Remembered>) -> io::Result<()> {
        let folder = File::open(&self.folder)?;
        // Two mounts of one source take turns; the last one wins.
        flock(&folder, FlockOperation::LockExclusive)?;
        let new = self.path("new");
        let options = File::options().write(true).create(true).truncate(true).mode(0o600).clone();
        let mut file = options.open(&new)?;
        file.write_all(&encode(&self.source, files))?;
        to_disk(&file)?;
        fs::rename(&new, self.path("history"))?;
        Ok(to_disk(&folder)?)
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    // A longer file is truncated here, and then found damaged.
    File::open(path)?.take(2 * BYTES_MAX as u64).read_to_end(&mut all)?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Vec<Remembered> {
        let one =
            Remembered { inode: 7, birth: -1, bytes: 1 << 40, uses: 9, path: (*b"a/b").into() };
        let other = Remembered { inode: 8, uses: 2, path: (*b"\xff").into(), ..one.clone() };
        vec![one, other]
    }

    #[test]
    fn what_is_kept_is_read_again_the_most_used_first() {
        let turned = two().into_iter().rev().collect();
        assert_eq!(decode("source", &encode("source", turned)), Ok(two()));
        assert!(decode("other", &encode("source", two())).is_err());
    }

    #[test]
    fn a_history_that_is_cut_anywhere_or_has_a_bit_flipped_is_none() {
        let whole = encode("source", two());
        for cut in 0..whole.len() {
            assert!(decode("source", &whole[..cut]).is_err(), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(decode("source", &other).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_history_is_bounded_and_keeps_what_was_used_most() {
        let path: Box<[u8]> = vec![b'x'; 4000].into();
        let one = |uses| Remembered { inode: 1, birth: 0, bytes: 1, uses, path: path.clone() };
        let all = encode("source", (0..6000).map(one).collect());
        assert!(all.len() <= BYTES_MAX);
        assert_eq!(decode("source", &all).unwrap()[0].uses, 5999);
    }

    #[test]
    fn a_damaged_history_is_left_aside_and_the_next_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = HistoryFile::open(&folder.path().join("state"), "source".into()).unwrap();
        assert_eq!(file.load(), []);
        file.save(two()).unwrap();
        assert_eq!(file.load(), two());
        fs::write(file.path("history"), "FLOWHIS1 and no more").unwrap();
        assert_eq!(file.load(), []);
        assert!(file.path("damaged").exists() && !file.path("history").exists());
        file.save(two()).unwrap();
        assert_eq!(file.load(), two());
        assert!(!file.path("new").exists());
    }
}
