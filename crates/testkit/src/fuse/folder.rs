//! A folder of files that answers FUSE requests: what is asked of it is done to the files behind
//! it.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek, statvfs};

use super::wire::{Answer, Call, Message, WRITE_BYTES_MAX};

/// The folder's own number.
const ROOT: u64 = 1;
/// From linux/fuse.h: reads of a file are sent side by side, writes may be larger than a page.
const ASYNC_READ: u32 = 1;
const BIG_WRITES: u32 = 1 << 5;
const MAX_PAGES: u32 = 1 << 22;
/// The kernel keeps pages of a file that is opened again.
const KEEP_CACHE: u32 = 2;
/// From linux/fuse.h: which attributes are to be set.
const SET_SIZE: u32 = 1 << 3;

/// See the module. Files are opened for as long as the folder is there.
pub struct Folder {
    behind: PathBuf,
    /// By their numbers: names, and files that have been opened.
    nodes: BTreeMap<u64, (String, Option<File>)>,
    next: u64,
}

type Outcome = io::Result<Answer>;

impl Folder {
    /// Of the files in `behind`.
    pub fn new(behind: PathBuf) -> Self {
        Self { behind, nodes: BTreeMap::new(), next: ROOT + 1 }
    }

    /// Does what a request asks for.
    pub fn answer(&mut self, message: &Message) -> Result<Answer, i32> {
        let outcome = match message.call {
            Call::Init => Ok(init(message)),
            Call::Lookup => self.lookup(&message.names(0).next().unwrap_or_default()),
            Call::GetAttr => self.attributes(message.node),
            Call::SetAttr => self.set_attributes(message),
            Call::Open | Call::OpenDir => self.open(message.node),
            Call::Create => self.create(&message.names(16).next().unwrap_or_default()),
            Call::Unlink => self.unlink(&message.names(0).next().unwrap_or_default()),
            Call::Rename => self.rename(message.names(8)),
            Call::Rename2 => self.rename(message.names(16)),
            Call::Read => self.read(message),
            Call::Write => self.write(message),
            Call::Fallocate => self.fallocate(message),
            Call::Lseek => self.seek(message),
            Call::StatFs => self.room(),
            // What is written is in the files already, and those of a test need not survive a power
            // cut.
            Call::Fsync | Call::FsyncDir | Call::Flush | Call::Release | Call::ReleaseDir => {
                Ok(Answer::default())
            }
            Call::ReadDir => Ok(Answer::default()),
            Call::Forget | Call::BatchForget | Call::Interrupt | Call::Other => {
                Err(io::Error::from_raw_os_error(libc::ENOSYS))
            }
        };
        outcome.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.behind.join(name)
    }

    fn metadata(&self, node: u64) -> io::Result<Metadata> {
        match self.nodes.get(&node) {
            None if node == ROOT => self.behind.metadata(),
            Some((_, Some(file))) => file.metadata(),
            Some((name, None)) => self.path(name).metadata(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn file(&mut self, node: u64) -> io::Result<&File> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let (name, file) = self.nodes.get_mut(&node).ok_or_else(missing)?;
        if file.is_none() {
            *file = Some(File::options().read(true).write(true).open(self.behind.join(name))?);
        }
        file.as_ref().ok_or_else(missing)
    }

    /// The number of a name, and what is known of its file; nothing of it is kept by the kernel.
    fn lookup(&mut self, name: &str) -> Outcome {
        self.path(name).metadata()?;
        let known = self.nodes.iter().find(|(_, (known, _))| known == name);
        let node = match known {
            Some((node, _)) => *node,
            None => {
                self.next += 1;
                self.nodes.insert(self.next, (name.to_owned(), None));
                self.next
            }
        };
        let entry = Answer::default().u64s(&[node, 0, 0, 0]).u32s(&[0, 0]);
        Ok(entry.attributes(node, &self.metadata(node)?))
    }

    fn attributes(&self, node: u64) -> Outcome {
        let answer = Answer::default().u64s(&[0, 0]);
        Ok(answer.attributes(node, &self.metadata(node)?))
    }

    fn set_attributes(&mut self, message: &Message) -> Outcome {
        if message.u32(0) & SET_SIZE != 0 {
            self.file(message.node)?.set_len(message.u64(16))?;
        }
        self.attributes(message.node)
    }

    fn open(&mut self, node: u64) -> Outcome {
        if node != ROOT {
            self.file(node)?;
        }
        Ok(Answer::default().u64s(&[node]).u32s(&[KEEP_CACHE, 0]))
    }

    fn create(&mut self, name: &str) -> Outcome {
        File::options().write(true).create(true).truncate(false).open(self.path(name))?;
        let mut answer = self.lookup(name)?;
        let node = u64::from_le_bytes(answer.0[..8].try_into().expect("eight bytes"));
        answer.0.extend(self.open(node)?.0);
        Ok(answer)
    }

    /// Those who have it open keep it.
    fn unlink(&mut self, name: &str) -> Outcome {
        std::fs::remove_file(self.path(name))?;
        self.forget(name);
        Ok(Answer::default())
    }

    fn forget(&mut self, name: &str) {
        let known = self.nodes.values_mut().filter(|(known, _)| known == name);
        known.for_each(|(name, _)| name.clear());
    }

    fn rename(&mut self, mut names: impl Iterator<Item = String>) -> Outcome {
        let (from, to) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
        std::fs::rename(self.path(&from), self.path(&to))?;
        self.forget(&to);
        let moved = self.nodes.values_mut().filter(|(known, _)| *known == from);
        moved.for_each(|(name, _)| name.clone_from(&to));
        Ok(Answer::default())
    }

    fn read(&mut self, message: &Message) -> Outcome {
        let (mut offset, mut data) = (message.u64(8), vec![0; message.u32(16) as usize]);
        let (file, mut filled) = (self.file(message.node)?, 0);
        loop {
            let moved = file.read_at(&mut data[filled..], offset)?;
            filled += moved;
            offset += moved as u64;
            if moved == 0 {
                data.truncate(filled);
                return Ok(Answer(data));
            }
        }
    }

    fn write(&mut self, message: &Message) -> Outcome {
        self.write_first(message, message.u32(16))
    }

    /// Writes the first half of what a request asks for.
    pub fn write_half(&mut self, message: &Message) -> Result<Answer, i32> {
        // Disks write whole sectors.
        let bytes = (message.u32(16) / 2) & !511;
        self.write_first(message, bytes).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }

    fn write_first(&mut self, message: &Message, bytes: u32) -> Outcome {
        let data = &message.rest(40)[..bytes as usize];
        self.file(message.node)?.write_all_at(data, message.u64(8))?;
        Ok(Answer::default().u32s(&[bytes, 0]))
    }

    fn fallocate(&mut self, message: &Message) -> Outcome {
        let mode = FallocateFlags::from_bits_retain(message.u32(24));
        fallocate(self.file(message.node)?, mode, message.u64(8), message.u64(16))?;
        Ok(Answer::default())
    }

    fn seek(&mut self, message: &Message) -> Outcome {
        let offset = message.u64(8);
        let whence = match message.u32(16) as i32 {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        };
        Ok(Answer::default().u64s(&[seek(self.file(message.node)?, whence)?]))
    }

    fn room(&self) -> Outcome {
        let room = statvfs(&self.behind)?;
        let sizes = [room.f_blocks, room.f_bfree, room.f_bavail, room.f_files, room.f_ffree];
        let units = [room.f_bsize as u32, 255, room.f_frsize as u32, 0, 0, 0, 0, 0, 0, 0];
        Ok(Answer::default().u64s(&sizes).u32s(&units))
    }
}

/// The protocol that is spoken from now on. All that the kernel has to ask may be on its way at
/// once.
fn init(message: &Message) -> Answer {
    let flags = message.u32(12) & (ASYNC_READ | BIG_WRITES | MAX_PAGES);
    let version = [7, 31, message.u32(8), flags];
    let many = u32::from(u16::MAX);
    let queues = many | many << 16;
    let pages = WRITE_BYTES_MAX / 4096;
    Answer::default().u32s(&version).u32s(&[queues, WRITE_BYTES_MAX, 1, pages]).u32s(&[0; 8])
}
