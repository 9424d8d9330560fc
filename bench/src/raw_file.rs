//! Raw files with every block written: reads of holes would measure the host's memory, and writes
//! to them its allocator.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use rustix::fs::{Advice, fadvise, fsync};

const CHUNK: usize = 1 << 20;
/// Time until a disk is idle after writing gigabytes.
pub const REST: Duration = Duration::from_secs(5);

/// Returns whether every block is allocated.
fn is_full(path: &Path, bytes: u64) -> bool {
    let full = |meta: std::fs::Metadata| meta.len() == bytes && meta.blocks() * 512 >= bytes;
    std::fs::metadata(path).is_ok_and(full)
}

/// Writes every block of a raw image, unless that has been done. Drops it from the page cache,
/// which direct writes would otherwise have to invalidate.
pub fn fill(path: PathBuf, bytes: u64) -> Result<PathBuf> {
    if !is_full(&path, bytes) {
        eprintln!("writing {} ({} MiB), once", path.display(), bytes >> 20);
        write_full(&path, bytes)?;
        std::thread::sleep(REST);
    }
    Ok(path)
}

/// Writes every block of a raw image.
pub fn write_full(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = fastrand::Rng::with_seed(bytes);
    let mut chunk = vec![0; CHUNK];
    random.fill(&mut chunk);
    let mut left = bytes as usize;
    while left > 0 {
        // One random word per page makes pages differ; the rest may repeat.
        chunk.chunks_mut(4096).for_each(|page| random.fill(&mut page[..8]));
        let part = left.min(CHUNK);
        file.write_all(&chunk[..part])?;
        left -= part;
    }
    drop_pages(path)
}

/// Writes a file to its disk, and drops it from the page cache.
#[expect(clippy::disallowed_methods, reason = "no daemon serves the file just now")]
pub fn drop_pages(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    fsync(&file)?;
    Ok(fadvise(&file, 0, None, Advice::DontNeed)?)
}
