//! Samples the sequential read speed of an image in LBA order, for before and after `compact`.

use std::io;
use std::time::{Duration, Instant};

use flowstone_block::{AlignedBuf, BlockingDisk, Extent, SECTOR_BYTES, Sector, SectorCount};

use crate::{Image, chunks};

/// Size of one read: a guest's read-ahead asks for this much or less.
const READ_BYTES: u64 = 1 << 20;
/// Bytes read sequentially at one place.
const PLACE_BYTES: u64 = 8 << 20;
/// Maximum number of places read.
const PLACES: u64 = 16;
/// Maximum duration of a sample, so that a slow disk is not kept busy for longer.
const TIME_MAX: Duration = Duration::from_secs(1);

/// Bytes read, and the time it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadSample {
    /// Bytes of data.
    pub bytes: u64,
    /// Time from the first request to the last completion.
    pub time: Duration,
}

impl ReadSample {
    /// Megabytes per second; `None` if there was nothing to read.
    pub fn mb_per_s(self) -> Option<f64> {
        (self.bytes > 0).then(|| self.bytes as f64 / 1e6 / self.time.as_secs_f64())
    }
}

/// Reads some of the image's data, from places spread evenly over it, each in LBA order.
pub fn sample_reads(image: &dyn Image) -> io::Result<ReadSample> {
    let places = choose_places(image)?;
    let mut disk = BlockingDisk::new(image)?;
    let mut buffer = AlignedBuf::zeroed(READ_BYTES as usize);
    let mut sample = ReadSample::default();
    let start = Instant::now();
    for read in places.into_iter().flat_map(|place| chunks(place, READ_BYTES)) {
        disk.read(read.start(), &mut buffer[..read.bytes() as usize])?;
        sample.bytes += read.bytes();
        sample.time = start.elapsed();
        if sample.time > TIME_MAX {
            break;
        }
    }
    Ok(sample)
}

/// Chooses the places to read.
fn choose_places(image: &dyn Image) -> io::Result<Vec<Extent>> {
    let data_bytes = each_data(image, |_, _| {})?;
    let step = (data_bytes / PLACES).next_multiple_of(READ_BYTES).max(PLACE_BYTES);
    let mut places: Vec<Extent> = Vec::new();
    each_data(image, |data, before| {
        // The part of each place that lies in this range.
        for place in before / step..=(before + data.bytes() - 1) / step {
            let from = (place * step).max(before) - before;
            let to = (place * step + PLACE_BYTES).min(before + data.bytes());
            let Some(bytes) = to.checked_sub(before + from) else { continue };
            let first = Sector::new(data.start().get() + from / SECTOR_BYTES);
            places.extend(Extent::new(first, SectorCount::new(bytes / SECTOR_BYTES)));
        }
    })?;
    Ok(places)
}

/// Calls `visit` with each range of data in LBA order and the number of data bytes before it.
/// Returns the number of data bytes.
fn each_data(image: &dyn Image, mut visit: impl FnMut(Extent, u64)) -> io::Result<u64> {
    let mut bytes = 0;
    let mut found = image.next_data(Sector::new(0))?;
    while let Some(mut data) = found {
        loop {
            found = image.next_data(data.end())?;
            match found.filter(|next| next.start() == data.end()).and_then(|next| join(data, next))
            {
                Some(joined) => data = joined,
                None => break,
            }
        }
        visit(data, bytes);
        bytes += data.bytes();
    }
    Ok(bytes)
}

fn join(first: Extent, second: Extent) -> Option<Extent> {
    Extent::new(first.start(), SectorCount::new(first.count().get() + second.count().get()))
}
