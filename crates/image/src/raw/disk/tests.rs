use std::ops::Range;

use flowstone_block::{AlignedBuf, BlockingDisk, Doorbells, Errno, Op};
use flowstone_fileio::{FileChannel, FileCompletion, FileOp, FileRequest};

use super::*;

/// A file that takes everything, and whose first flush fails, as the kernel reports it: once.
struct OneBadSync {
    failed: Arc<AtomicBool>,
}

struct OneBadSyncChannel {
    failed: Arc<AtomicBool>,
    done: Vec<FileCompletion>,
}

impl FileIo for OneBadSync {
    fn size(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn set_size(&self, _bytes: u64) -> io::Result<()> {
        Ok(())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn next_data(&self, _from: FileOffset) -> io::Result<Option<Range<FileOffset>>> {
        Ok(None)
    }

    fn describe(&self) -> String {
        "a test".into()
    }

    fn channel(&self, _depth: QueueDepth) -> io::Result<Box<dyn FileChannel>> {
        Ok(Box::new(OneBadSyncChannel { failed: Arc::clone(&self.failed), done: Vec::new() }))
    }
}

impl FileChannel for OneBadSyncChannel {
    fn submit(&mut self, request: FileRequest) {
        let fails = request.op == FileOp::Datasync && !self.failed.swap(true, Ordering::Relaxed);
        let outcome = if fails { Err(Errno::IO) } else { Ok(()) };
        self.done.push(FileCompletion { tag: request.tag, outcome });
    }

    fn kick(&mut self) {}

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.done);
    }

    fn sleep(&mut self, _bells: &Doorbells<'_>) {}
}

#[test]
fn after_a_failed_flush_no_queue_promises_anything() {
    let file = Box::new(OneBadSync { failed: Arc::default() });
    let image =
        RawImage::open(Path::new("t.raw"), file, DiscardMode::Deallocate, Access::Write).unwrap();
    let mut one = BlockingDisk::new(&image).unwrap();
    let mut other = BlockingDisk::new(&image).unwrap();
    assert_eq!(one.run(Op::Flush), Err(Errno::IO));
    // The kernel would say yes now; the data may be gone all the same.
    assert_eq!(one.run(Op::Flush), Err(Errno::IO));
    assert_eq!(other.run(Op::Flush), Err(Errno::IO));
    let mut data = AlignedBuf::zeroed(4096);
    assert_eq!(other.write(Sector::new(0), &mut data), Ok(()));
    assert_eq!(other.read(Sector::new(0), &mut data), Ok(()));
}
