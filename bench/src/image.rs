//! The files that are measured: written once, fully, with bytes that do not compress.
//!
//! A file that is there in full size with all its blocks is used again, since writing gigabytes
//! anew before every run would age the disk and take minutes. The file on tmpfs is memory, so it
//! goes when the run ends; the one on disk stays.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};

use crate::args::CompareArgs;
use crate::point::Backend;

const CHUNK: usize = 1 << 20;
/// A disk that just took gigabytes is not itself for a while.
const REST: Duration = Duration::from_secs(5);
const TMPFS: &str = "/dev/shm";

/// Where the images are.
#[derive(Debug)]
pub struct Images {
    tmpfs: Image,
    disk: Image,
}

#[derive(Debug)]
struct Image {
    path: PathBuf,
    bytes: u64,
}

impl Images {
    /// Chooses places; nothing is written yet.
    pub fn new(args: &CompareArgs) -> Result<Self> {
        let dir = match &args.dir {
            Some(dir) => dir.clone(),
            None => default_dir()?,
        };
        std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
        Ok(Images {
            tmpfs: Image::new(Path::new(TMPFS), args.tmpfs_size),
            disk: match &args.device {
                // Of no size as a file, so that it is full.
                Some(device) => Image { path: device.clone(), bytes: 0 },
                None => Image::new(&dir, args.file_size),
            },
        })
    }

    /// The image for a backend, written if it is not there; nothing for the null backend.
    pub fn prepare(&self, backend: Backend) -> Result<Option<&Path>> {
        let image = match backend {
            Backend::Null => return Ok(None),
            Backend::Tmpfs => &self.tmpfs,
            Backend::Disk => &self.disk,
        };
        image.fill().with_context(|| format!("write {}", image.path.display()))?;
        Ok(Some(&image.path))
    }

    /// The directory of the disk image, or the device that is measured, for the report.
    pub fn disk_place(&self) -> &Path {
        match self.disk.bytes {
            0 => &self.disk.path,
            _ => self.disk.path.parent().unwrap_or(Path::new("/")),
        }
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.tmpfs.path);
    }
}

impl Image {
    fn new(dir: &Path, bytes: u64) -> Self {
        Image { path: dir.join(format!("flowstone-bench-{bytes}.raw")), bytes }
    }

    fn fill(&self) -> Result<()> {
        fill(&self.path, self.bytes)
    }
}

/// Is every block of it there?
fn is_full(path: &Path, bytes: u64) -> bool {
    let full = |meta: std::fs::Metadata| meta.len() == bytes && meta.blocks() * 512 >= bytes;
    std::fs::metadata(path).is_ok_and(full)
}

/// Writes every block of a raw image, unless that has been done. None of it stays in the page cache, where
/// direct writes would have to look for it.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    if is_full(path, bytes) {
        return Ok(());
    }
    eprintln!("writing {} ({} MiB), once", path.display(), bytes >> 20);
    write_full(path, bytes)?;
    std::thread::sleep(REST);
    Ok(())
}

/// Writes every block of a raw image.
#[expect(clippy::disallowed_methods, reason = "nothing else syncs this file")]
pub fn write_full(path: &Path, bytes: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut random = fastrand::Rng::with_seed(bytes);
    let mut chunk = vec![0; CHUNK];
    random.fill(&mut chunk);
    let mut left = bytes as usize;
    while left > 0 {
        // One word per page tells pages apart; the rest may repeat.
        chunk.chunks_mut(4096).for_each(|page| random.fill(&mut page[..8]));
        let part = left.min(CHUNK);
        file.write_all(&chunk[..part])?;
        left -= part;
    }
    file.sync_all()?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    Ok(())
}

/// `bench` in the target directory this program was built into.
fn default_dir() -> Result<PathBuf> {
    let this = std::env::current_exe().context("find this program")?;
    let target = this.ancestors().nth(2).context("this program lies in no target directory")?;
    Ok(target.join("bench-data"))
}
