//! An open host file: its descriptors, its kind, and the engine that serves it.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flowstone_block::{QueueContext, Reactor};
use rustix::fs::{SeekFrom, fstatfs, seek};
use rustix::io::Errno;

use crate::descriptor::{Descriptors, FileKind};
use crate::inline::InlineChannel;
use crate::pool::{Pool, PoolChannel};
use crate::uring::UringChannel;
use crate::{Engine, FileChannel, FileIo, FileOffset, Punched, holes};

/// Copy-on-write file systems, from linux/magic.h, bcachefs and OpenZFS.
const COPY_ON_WRITE: [(u64, &str); 3] =
    [(0x9123_683e, "btrfs"), (0xca45_1a4e, "bcachefs"), (0x2fc1_2fc1, "ZFS")];

/// An open, locked host file or block device.
pub struct HostFile {
    files: Arc<Descriptors>,
    engine: Engine,
    pool: Arc<Pool>,
}

impl HostFile {
    pub(crate) fn new(files: Descriptors, engine: Engine) -> Self {
        Self { files: Arc::new(files), engine, pool: Arc::default() }
    }

    fn is_block_device(&self) -> bool {
        self.files.kind == FileKind::BlockDevice
    }

    fn pool_channel(&self, reactor: &Reactor) -> PoolChannel {
        PoolChannel::new(Arc::clone(&self.pool), Arc::clone(&self.files), reactor)
    }
}

impl FileIo for HostFile {
    fn size(&self) -> io::Result<u64> {
        self.files.size()
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        if self.is_block_device() {
            return Err(Errno::OPNOTSUPP.into());
        }
        // The next sync makes it durable. A sync here could consume an error that belongs to a
        // guest's flush: the host reports it once.
        self.files.file.set_len(bytes)
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        if self.is_block_device() {
            return self.size();
        }
        self.files.allocated_bytes()
    }

    fn next_data(&self, from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        let end = self.files.size()?;
        if from.get() >= end {
            return Ok(None);
        }
        let file = self.files.file.as_fd();
        let start = match seek(file, SeekFrom::Data(from.get())) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Devices and file systems that cannot tell: everything may be data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                return Ok(Some(from..FileOffset::new(end)));
            }
            Err(error) => return Err(error.into()),
        };
        let stop = seek(file, SeekFrom::Hole(start))?;
        Ok(Some(FileOffset::new(start)..FileOffset::new(stop)))
    }

    fn extents(&self) -> Option<u64> {
        (!self.is_block_device()).then(|| holes::count_extents(&self.files.file)).flatten()
    }

    fn tells_drive(&self) -> bool {
        crate::block_device::tells_drive(&self.files.file)
    }

    fn erase_unit(&self) -> Option<u64> {
        crate::block_device::erase_unit(&self.files.file)
    }

    fn write_streams(&self) -> u8 {
        self.files.write_streams
    }

    fn is_direct(&self) -> bool {
        self.files.direct.is_some()
    }

    fn heeds_dont_cache(&self) -> bool {
        self.files.page_cache.is_some()
    }

    fn discards_to_zeroes(&self) -> bool {
        self.files.discards_to_zeroes()
    }

    fn takes_discards(&self) -> bool {
        self.files.takes_discards()
    }

    fn zeroes_are_written(&self) -> bool {
        self.files.zeroes_are_written()
    }

    fn copies_on_write(&self) -> io::Result<Option<&'static str>> {
        if self.is_block_device() {
            return Ok(None);
        }
        let magic = fstatfs(&self.files.file)?.f_type as u64;
        Ok(COPY_ON_WRITE.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name))
    }

    fn punched(&self) -> Punched {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Punched {
            calls: get(&self.files.punches),
            bytes: get(&self.files.punched_bytes),
            freed_bytes: get(&self.files.freed_bytes),
        }
    }

    fn device(&self) -> Option<u64> {
        if self.engine == Engine::Inline {
            return None;
        }
        let metadata = self.files.file.metadata().ok()?;
        Some(if self.is_block_device() { metadata.rdev() } else { metadata.dev() })
    }

    fn block_bytes(&self) -> u32 {
        self.files.direct.map_or(512, |limits| limits.offset_bytes.max(512) as u32)
    }

    fn engine(&self) -> Option<Engine> {
        Some(self.engine)
    }

    fn describe(&self) -> String {
        let cache = if self.is_direct() { "direct I/O" } else { "page cache" };
        let streams = match self.files.write_streams {
            0 => String::new(),
            streams => format!(", {streams} write streams"),
        };
        format!("{cache}, engine {}{streams}", self.engine.name())
    }

    fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn FileChannel>> {
        let file = Arc::clone(&self.files);
        let QueueContext { depth, reactor, .. } = context;
        Ok(match self.engine {
            Engine::Uring => {
                let pool = self.pool_channel(reactor);
                Box::new(UringChannel::new(file, pool, *depth, reactor)?)
            }
            Engine::Sync => Box::new(self.pool_channel(reactor)),
            Engine::Inline => Box::new(InlineChannel::new(file, self.pool_channel(reactor))),
        })
    }
}
