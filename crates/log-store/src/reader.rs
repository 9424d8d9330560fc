//! Reads an image that does not change meanwhile: for opening and checking it.

use std::io;
use std::ops::Range;

use flowstone_block::{Errno, Outcome};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset};
use flowstone_log_format::{Address, BLOCK_BYTES};

use super::offsets;

/// See the module.
pub struct Reader<'a> {
    io: &'a dyn FileIo,
    file: BlockingFile,
    /// Blocks that lie wholly in the file.
    blocks: u64,
}

impl<'a> Reader<'a> {
    /// Opens a file, whose size must not change while the reader exists.
    pub fn open(io: &'a dyn FileIo) -> Result<Self, Errno> {
        let blocks = io.size().map_err(errno_of)? / BLOCK_BYTES as u64;
        Ok(Self { io, file: BlockingFile::new(io).map_err(errno_of)?, blocks })
    }

    /// Returns the number of blocks that there are.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Reads blocks that follow each other.
    pub fn read(&mut self, from: Address, target: &mut [u8]) -> Outcome {
        self.file.read(from.offset(), target)
    }

    /// Reads many buffers together and, if that fails, one by one. Returns the outcome of each.
    pub fn read_each(&mut self, reads: Vec<(Address, &mut [u8])>) -> Vec<Outcome> {
        let (places, targets): (Vec<_>, Vec<_>) = reads.into_iter().unzip();
        let mut reads = offsets(places.iter().copied().zip(targets));
        match self.file.read_many(&mut reads) {
            Ok(()) => vec![Ok(()); reads.len()],
            Err(_) => {
                reads.into_iter().map(|(offset, target)| self.file.read(offset, target)).collect()
            }
        }
    }

    /// Returns the next blocks from `from` on, and before `end`, that the host has allocated.
    pub fn next_allocated(&self, from: u64, end: u64) -> Result<Option<Range<u64>>, Errno> {
        let block = BLOCK_BYTES as u64;
        let found = self.io.next_data(FileOffset::new(from * block)).map_err(errno_of)?;
        let found = found.map(|range| {
            let start = (range.start.get() / block).max(from);
            start..range.end.get().div_ceil(block).min(end)
        });
        Ok(found.filter(|range| !range.is_empty()))
    }
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
