//! Uncached data does not stay in the host's page cache, and all other data does.

use std::path::Path;

use flowstone_block::{AlignedBuf, IoVec};
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, EngineChoice, FileOffset, FileOp, FileRequest, MemoryList,
    OpenOptions, create_sparse,
};
use flowstone_testkit::{page_cache, wait_until};

const PAGE: usize = 4096;
const BLOCK: usize = 1024;
const HALF: u64 = 256 << 10;

/// Returns the number of pages of a range of the file that are in the page cache.
fn resident(path: &Path, offset: u64, bytes: usize) -> usize {
    let pages = page_cache::resident(path);
    let first = offset as usize / PAGE;
    pages[first..first + bytes / PAGE].iter().filter(|page| **page).count()
}

/// Returns whether the pages of a half stay. A busy host reclaims single ones by itself.
fn stays(pages: usize) -> bool {
    pages > HALF as usize / PAGE / 2
}

fn transfer(file: &mut BlockingFile, op: FileOp, buffer: &mut [u8], dont_cache: bool) {
    // SAFETY: the request completes before the buffer is used again.
    let list = [unsafe { IoVec::of(buffer) }];
    // SAFETY: as above.
    let request = FileRequest::new(op, unsafe { MemoryList::new(&list) }, 0);
    file.carry_out(request.dont_cache(dont_cache)).unwrap();
}

#[test]
fn what_is_marked_does_not_stay_in_the_page_cache() {
    for engine in [EngineChoice::Uring, EngineChoice::Sync] {
        for heeded in [true, false] {
            let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let path = folder.path().join("disk.raw");
            create_sparse(&path, 2 * HALF).unwrap();
            let options = OpenOptions {
                direct: DirectChoice::Off,
                engine,
                dont_cache: heeded,
                ..OpenOptions::new(Access::Write)
            };
            let file = options.open(&path).unwrap();
            let mut file = BlockingFile::new(&file).unwrap();
            let mut buffer = AlignedBuf::zeroed(PAGE);
            buffer.fill(7);
            // Like the journal of a small file system: partial pages.
            for at in (0..2 * HALF).step_by(BLOCK) {
                let offset = FileOffset::new(at);
                let op = FileOp::Write { offset, bytes: BLOCK as u64, durable: false };
                transfer(&mut file, op, &mut buffer[..BLOCK], at >= HALF);
                if at % 3 == 0 {
                    file.sync().unwrap();
                }
            }
            // The first sync may have begun before a write of another queue.
            file.sync().unwrap();
            file.sync().unwrap();
            assert!(stays(resident(&path, 0, HALF as usize)), "{engine:?}");
            let of_marked = resident(&path, HALF, HALF as usize);
            assert!(if heeded { of_marked == 0 } else { stays(of_marked) }, "{engine:?} {heeded}");
            if heeded {
                let op = FileOp::Read { offset: FileOffset::new(HALF), bytes: PAGE as u64 };
                transfer(&mut file, op, &mut buffer, true);
                assert_eq!((buffer[0], resident(&path, HALF, PAGE)), (7, 0), "{engine:?}");
                // In sequence: the host's readahead must not go on behind what is read.
                for at in (HALF..HALF + HALF / 2).step_by(PAGE) {
                    let op = FileOp::Read { offset: FileOffset::new(at), bytes: PAGE as u64 };
                    transfer(&mut file, op, &mut buffer, true);
                }
                assert_eq!(resident(&path, HALF, HALF as usize), 0, "{engine:?}");
                wait_until("a page that was read to stay", || {
                    transfer(&mut file, op, &mut buffer, false);
                    resident(&path, HALF, PAGE) == 1
                });
            }
        }
    }
}
