//! A file on a drive, in the interface that image code uses.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use flowstone_block::{Clock, Errno, QueueContext};
use flowstone_fileio::{FileChannel, FileIo, FileOffset, Punched};

use crate::channel::SsdChannel;
use crate::contents::BLOCK_BYTES;
use crate::options::TrimMode;
use crate::place::Place;
use crate::shared::Shared;

/// A file on a drive.
#[derive(Clone)]
pub struct SsdFile {
    shared: Arc<Shared>,
    place: Arc<Place>,
}

impl SsdFile {
    pub(crate) fn new(shared: Arc<Shared>, place: Place) -> Self {
        Self { shared, place: Arc::new(place) }
    }
}

impl FileIo for SsdFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.place.size())
    }

    fn tells_drive(&self) -> bool {
        self.shared.state().options.trim == TrimMode::On
    }

    fn erase_unit(&self) -> Option<u64> {
        Some(self.shared.state().options.block_bytes)
    }

    fn write_streams(&self) -> u8 {
        self.shared.state().options.streams
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        if bytes > self.place.bytes_max() {
            return Err(Errno::NOSPC.into());
        }
        let before = self.place.set_size(bytes);
        if bytes < before {
            let first = self.place.offset();
            self.shared.state().punch(first + bytes..first + before);
        }
        Ok(())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        let state = self.shared.state();
        let blocks = self.place.blocks(0..self.place.bytes_max());
        Ok(blocks.filter(|block| state.is_in_use(*block)).count() as u64 * BLOCK_BYTES as u64)
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        let state = self.shared.state();
        let size = self.place.size();
        let mut blocks = self.place.blocks(from.get().min(size)..size);
        let Some(first) = blocks.find(|block| state.is_in_use(*block)) else { return Ok(None) };
        let end = blocks.find(|block| !state.is_in_use(*block)).unwrap_or(blocks.end);
        let offset = |block: u32| u64::from(block - self.place.first) * BLOCK_BYTES as u64;
        let range = offset(first).max(from.get())..offset(end).min(size);
        Ok(Some(FileOffset::new(range.start)..FileOffset::new(range.end)))
    }

    fn punched(&self) -> Punched {
        let state = self.shared.state();
        let (calls, bytes) = (state.punches, state.punched_bytes);
        Punched { calls, bytes, freed_bytes: bytes }
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn clock(&self) -> Clock {
        self.shared.time.clock()
    }

    fn block_bytes(&self) -> u32 {
        512
    }

    fn describe(&self) -> String {
        "a model of an SSD".into()
    }

    fn channel(&self, _: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(SsdChannel::new(Arc::clone(&self.shared), Arc::clone(&self.place))))
    }
}
