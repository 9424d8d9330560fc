//! Creates an empty log image.

use std::io::{self, Read};

use flowstone_block::{Error, Result, SectorCount};
use flowstone_fileio::FileIo;
use flowstone_log_format::{
    BLOCK_BYTES, ERASE_UNIT_BYTES, EraseUnit, RESERVE_DEFAULT_PERCENT, RESERVE_PERCENT,
    SEGMENT_BYTES, Shape, Superblock, blocks_of,
};
use flowstone_log_store::BlockingStore;

use super::streams::Streams;

/// Options for creating a log image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Bytes of a segment: a power of two, 256 KiB to 1 GiB. By default four erase units of the
    /// drive, if the disk has at least 128 of those; and 1/512 of the disk, at least 1 MiB and at
    /// most 32 MiB, if that is more.
    pub segment_bytes: Option<u64>,
    /// Erase unit of the drive in bytes; by default the one it reports, else 32 MiB.
    pub erase_unit_bytes: Option<u64>,
    /// Space beyond the size of the disk, in percent of the whole; default 25.
    pub reserve_percent: Option<u32>,
    /// Streams of guest writes.
    pub streams: Streams,
}

impl LogOptions {
    /// Returns the bytes of a segment for a disk of `bytes` bytes.
    pub fn segment_bytes_of(&self, bytes: u64) -> u64 {
        let unit = EraseUnit::choose(self.erase_unit_bytes, None);
        self.segment_bytes.unwrap_or_else(|| Shape::default_segment_bytes(bytes, unit))
    }

    /// Returns the most data blocks that a segment holds, for a disk of `bytes` bytes.
    pub fn segment_data_blocks(&self, bytes: u64) -> u32 {
        let segment_blocks = (self.segment_bytes_of(bytes) / BLOCK_BYTES as u64) as u32;
        // The others make no difference to a segment.
        Shape { segment_blocks, reserve_percent: 0, streams: 1 }.data_blocks_most()
    }

    /// Returns the maximum size of the file of an image of a disk of `bytes` bytes.
    pub fn file_bytes(&self, name: &str, bytes: u64) -> Result<u64> {
        let (shape, segments) = self.shape(name, bytes)?;
        Ok(u64::from(segments) * shape.segment_bytes())
    }

    /// Returns the shape of an image of a disk of `bytes` bytes and its number of segments, or why
    /// there can be none.
    fn shape(&self, name: &str, bytes: u64) -> Result<(Shape, u32)> {
        let invalid = |why, advice: &'static str| Err(Error::invalid(name, why, advice));
        let segment_bytes = self.segment_bytes_of(bytes);
        let fits = SEGMENT_BYTES.contains(&segment_bytes) || segment_bytes == SEGMENT_BYTES.end;
        if !segment_bytes.is_power_of_two() || !fits {
            let why = "a segment is a power of two from 256K to 1G";
            return invalid(why, "give a --segment such as 32M");
        }
        if let Some(unit) = self.erase_unit_bytes {
            if !ERASE_UNIT_BYTES.contains(&unit) || !unit.is_multiple_of(4096) {
                let why = "an erase unit is a multiple of 4K, up to 1G";
                return invalid(why, "give an --erase-unit such as 32M");
            }
            if self.segment_bytes.is_some() && !segment_bytes.is_multiple_of(unit) {
                let why = "the --segment is no multiple of the --erase-unit";
                return invalid(why, "give one that is four times as large, or leave it out");
            }
        }
        let reserve_percent = self.reserve_percent.unwrap_or(RESERVE_DEFAULT_PERCENT);
        if !RESERVE_PERCENT.contains(&reserve_percent) {
            return invalid("a reserve is 3 to 74 percent", "give a --reserve such as 20");
        }
        let shape = Shape {
            segment_blocks: (segment_bytes / BLOCK_BYTES as u64) as u32,
            reserve_percent,
            streams: self.streams.count(),
        };
        // As many blocks as addresses can express, with room for the reserve.
        let Some(segments) = shape.segments_for(blocks_of(bytes)) else {
            let why = "a log image cannot be larger than 16 TiB in all";
            return invalid(why, "choose a smaller --size or --reserve");
        };
        if !shape.root_fits(blocks_of(bytes)) {
            let why = "the segment is too small for a disk of this size";
            return invalid(why, "use a larger --segment");
        }
        Ok((shape, segments))
    }
}

/// Writes an empty log image into `file`, which reads as zeroes. Returns a warning with the
/// cost for the drive, if a raw image is gentler on it.
pub fn create(
    name: &str,
    file: &dyn FileIo,
    capacity: SectorCount,
    options: LogOptions,
) -> Result<Option<String>> {
    options.shape(name, capacity.bytes())?;
    let unit = EraseUnit::choose(options.erase_unit_bytes, file.erase_unit());
    let options = LogOptions { erase_unit_bytes: Some(unit.bytes), ..options };
    let segment_bytes = Some(options.segment_bytes_of(capacity.bytes()));
    let options = LogOptions { segment_bytes, erase_unit_bytes: None, ..options };
    let (shape, segments) = options.shape(name, capacity.bytes())?;
    let host = |error: io::Error| Error::host(name, error, "check the host's file system");
    let identity = random_bytes().map_err(host)?;
    let superblock = Superblock {
        erase_unit: Some(unit),
        ..Superblock::first(identity, shape, segments, capacity)
    };
    write(file, &superblock).map_err(host)?;
    Ok(unit.warning(shape.segment_bytes(), file.write_streams() > 0))
}

fn random_bytes() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn write(file: &dyn FileIo, superblock: &Superblock) -> io::Result<()> {
    let mut store = BlockingStore::open(file, superblock.shape())?;
    store.write_superblock(superblock)?;
    store.sync_alone()?;
    Ok(())
}
