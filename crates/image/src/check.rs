//! Checking a raw image: every byte that is there can be read.

use flowstone_block::{AlignedBuf, BlockingDisk, Error, Extent, Result, Sector, SectorCount};

use crate::Image;
use crate::convert::chunks;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Bytes read and found readable.
    pub readable_bytes: u64,
    /// What is wrong, one line each; a long list is cut short.
    pub errors: Vec<String>,
    /// How many errors there are in all.
    pub error_count: u64,
    /// Bytes that belong to nothing; a raw image has none.
    pub leaked_bytes: u64,
}

/// A ruined image must not make a ruinous report.
pub const ERRORS_LISTED_MAX: usize = 100;

impl CheckReport {
    fn error(&mut self, line: String) {
        self.error_count += 1;
        if self.errors.len() < ERRORS_LISTED_MAX {
            self.errors.push(line);
        }
    }
}

/// Reads all data of the image. `progress` is told how many bytes of the disk are dealt with.
pub fn check(image: &dyn Image, mut progress: impl FnMut(u64)) -> Result<CheckReport> {
    let host = |error| Error::host("check", error, "check the host's file system");
    let mut disk = BlockingDisk::new(image).map_err(host)?;
    let mut report = CheckReport::default();
    let mut at = Sector::new(0);
    while let Some(data) = image.next_data(at).map_err(host)? {
        for chunk in chunks(data) {
            read_chunk(&mut disk, chunk, &mut report);
            progress(chunk.start_bytes() + chunk.bytes());
        }
        at = data.end();
    }
    progress(image.geometry().capacity.bytes());
    Ok(report)
}

/// Reads a chunk; if that fails, finds the 4 KiB blocks that cannot be read.
fn read_chunk(disk: &mut BlockingDisk, chunk: Extent, report: &mut CheckReport) {
    const BLOCK_SECTORS: u64 = 8;
    let mut buffer = AlignedBuf::zeroed(chunk.bytes() as usize);
    if disk.read(chunk.start(), &mut buffer).is_ok() {
        report.readable_bytes += chunk.bytes();
        return;
    }
    for start in (chunk.start().get()..chunk.end().get()).step_by(BLOCK_SECTORS as usize) {
        let count = BLOCK_SECTORS.min(chunk.end().get() - start);
        let Some(block) = Extent::new(Sector::new(start), SectorCount::new(count)) else {
            continue;
        };
        match disk.read(block.start(), &mut buffer[..block.bytes() as usize]) {
            Ok(()) => report.readable_bytes += block.bytes(),
            Err(errno) => report.error(format!("{block} cannot be read: {errno}")),
        }
    }
}
