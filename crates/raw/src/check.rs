//! Checks a raw image: all allocated data must be readable.

use std::path::Path;

use flowstone_block::{AlignedBuf, BlockingDisk, Error, Extent, Layer, Result, Sector};
use flowstone_fileio::{Access, FileIo};
use flowstone_image::{CHUNK_BYTES, CheckProgress, CheckReport, DiscardMode, Image, chunks};

use super::RawImage;

/// Reads all data of the image.
pub fn check(
    path: &Path,
    file: Box<dyn FileIo>,
    access: Access,
    progress: CheckProgress<'_>,
) -> Result<CheckReport> {
    let image = RawImage::open(path, file, DiscardMode::Deallocate, access)?;
    let name = path.display().to_string();
    let host = |error| Error::host(name.clone(), error, "check the host's file system");
    let mut disk = BlockingDisk::new(&image).map_err(host)?;
    let total = image.geometry().capacity.bytes();
    let mut report = CheckReport::default();
    let mut at = Sector::new(0);
    while let Some(data) = image.next_data(at).map_err(host)? {
        for chunk in chunks(data, CHUNK_BYTES) {
            report.data_bytes += chunk.bytes();
            read_chunk(&name, &mut disk, chunk, &mut report);
            progress(chunk.start_bytes() + chunk.bytes(), total);
        }
        at = data.end();
    }
    progress(total, total);
    Ok(report)
}

/// Reads a chunk; if that fails, finds the 4 KiB blocks that cannot be read.
fn read_chunk(name: &str, disk: &mut BlockingDisk, chunk: Extent, report: &mut CheckReport) {
    let mut buffer = AlignedBuf::zeroed(chunk.bytes() as usize);
    if disk.read(chunk.start(), &mut buffer).is_ok() {
        report.readable_bytes += chunk.bytes();
        return;
    }
    for block in chunks(chunk, 4096) {
        match disk.read(block.start(), &mut buffer[..block.bytes() as usize]) {
            Ok(()) => report.readable_bytes += block.bytes(),
            Err(errno) => report.error(format!("{name}: {block} cannot be read: {errno}")),
        }
    }
}
