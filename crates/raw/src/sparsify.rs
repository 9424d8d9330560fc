//! `compact` of a raw image: deallocates allocated space that holds only zeroes.
//!
//! For an image that is not in use: a range read here must not change before it is punched.

use std::io;
use std::ops::Range;

use flowstone_block::{AlignedBuf, BlockingDisk, Extent, Op, SECTOR_BYTES, Sector, SectorCount};
use flowstone_image::{CompactProgress, Image};

use flowstone_image::{CHUNK_BYTES, chunks, is_zero};

/// Minimum length of a punched run of zeroes: a hole in the middle of data costs the host an
/// extent, and every reader a seek in the extent map.
const HOLE_BYTES_MIN: usize = 64 << 10;

/// Reads all allocated space, and deallocates runs of zeroes.
pub fn sparsify(image: &dyn Image, progress: CompactProgress<'_>) -> io::Result<()> {
    let capacity_bytes = image.geometry().capacity.bytes();
    let mut disk = BlockingDisk::new(image)?;
    let mut buffer = AlignedBuf::zeroed(CHUNK_BYTES as usize);
    let mut at = Sector::new(0);
    while let Some(data) = image.next_data(at)? {
        for chunk in chunks(data, CHUNK_BYTES) {
            let bytes = chunk.bytes() as usize;
            disk.read(chunk.start(), &mut buffer[..bytes])?;
            for run in zero_runs(&buffer[..bytes]) {
                let start = Sector::new(chunk.start().get() + run.start as u64 / SECTOR_BYTES);
                let count = SectorCount::new((run.end - run.start) as u64 / SECTOR_BYTES);
                if let Some(extent) = Extent::new(start, count) {
                    disk.run(Op::WriteZeroes { extent, unmap: true })?;
                }
            }
            progress(chunk.start_bytes() + chunk.bytes(), capacity_bytes);
        }
        at = data.end();
    }
    Ok(disk.run(Op::Flush)?)
}

/// Returns the runs of zeroes in `memory` that are long enough, in whole sectors.
fn zero_runs(memory: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, sector) in memory.chunks(SECTOR_BYTES as usize).enumerate() {
        let at = index * SECTOR_BYTES as usize;
        match runs.last_mut() {
            _ if !is_zero(sector) => {}
            Some(run) if run.end == at => run.end += sector.len(),
            _ => runs.push(at..at + sector.len()),
        }
    }
    runs.retain(|run| run.end - run.start >= HOLE_BYTES_MIN);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_runs_of_zeroes_count() {
        let mut memory = vec![0; 1 << 20];
        assert!(zero_runs(&memory).iter().eq([&(0..1 << 20)]));
        memory[100 << 10] = 1;
        memory[(100 << 10) + HOLE_BYTES_MIN] = 1;
        let sector = SECTOR_BYTES as usize;
        let second = (100 << 10) + HOLE_BYTES_MIN + sector;
        assert_eq!(zero_runs(&memory), [0..100 << 10, second..1 << 20]);
        assert!(zero_runs(&[0; HOLE_BYTES_MIN - 512]).is_empty());
    }
}
