//! The file interface of a volatile file: each request is executed at once, on the queue's own
//! thread.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use flowstone_block::{NextLook, QueueContext, Result};
use flowstone_fileio::{
    BlockingFile, FileChannel, FileCompletion, FileIo, FileOffset, FileRequest, OpenOptions,
    Punched,
};

use super::Cache;

/// Opens the file at `path` behind a write cache: a [`FileOpener`](flowstone_fileio::FileOpener).
pub fn open_volatile(path: &Path, options: OpenOptions) -> Result<Box<dyn FileIo>> {
    let file = Box::new(options.open(path)?);
    let cache = Cache::new(file, options.access, path.is_file());
    Ok(Box::new(VolatileFile { cache: Arc::new(cache) }))
}

/// A host file behind a write cache in this process, which a sync empties and a kill discards.
struct VolatileFile {
    cache: Arc<Cache>,
}

impl FileIo for VolatileFile {
    fn size(&self) -> io::Result<u64> {
        let state = self.cache.state();
        Ok(state.size(self.cache.file.size()?))
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        let _settled = self.cache.write_back()?;
        self.cache.file.set_size(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.cache.file.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        let _settled = self.cache.write_back()?;
        self.cache.file.next_data(from)
    }

    fn extents(&self) -> Option<u64> {
        self.cache.file.extents()
    }

    fn is_direct(&self) -> bool {
        self.cache.file.is_direct()
    }

    fn takes_discards(&self) -> bool {
        self.cache.file.takes_discards()
    }

    fn zeroes_are_written(&self) -> bool {
        self.cache.file.zeroes_are_written()
    }

    fn discards_to_zeroes(&self) -> bool {
        self.cache.file.discards_to_zeroes()
    }

    fn survives_a_kill(&self) -> bool {
        false
    }

    fn copies_on_write(&self) -> io::Result<Option<&'static str>> {
        self.cache.file.copies_on_write()
    }

    fn punched(&self) -> Punched {
        self.cache.file.punched()
    }

    fn block_bytes(&self) -> u32 {
        self.cache.file.block_bytes()
    }

    fn describe(&self) -> String {
        format!("{} (when killed, loses what was not flushed)", self.cache.file.describe())
    }

    fn channel(&self, _context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(VolatileChannel {
            file: BlockingFile::new(&*self.cache.file)?,
            cache: Arc::clone(&self.cache),
            done: Vec::new(),
        }))
    }
}

/// The channel of a queue to a volatile file.
struct VolatileChannel {
    file: BlockingFile,
    cache: Arc<Cache>,
    done: Vec<FileCompletion>,
}

impl FileChannel for VolatileChannel {
    fn submit(&mut self, request: FileRequest) {
        let outcome = self.cache.execute(&mut self.file, request);
        self.done.push(FileCompletion::new(request.tag, outcome));
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.done.is_empty())
    }
}
