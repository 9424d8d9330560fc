//! Reads a segment in large pieces, for walks through its records.

use std::ops::Range;

use flowstone_block::{AlignedBuf, Errno};
use flowstone_log_format::{BLOCK_BYTES, SegmentId, Shape};

use super::Reader;

/// Blocks per read: enough for the longest record of data, and for full device throughput.
const WINDOW_BLOCKS: u32 = 512;

/// The part of a segment that is in memory.
#[derive(Default)]
pub struct Window {
    buffer: Option<AlignedBuf>,
    segment: SegmentId,
    blocks: Range<u32>,
}

impl Window {
    /// Reads `count` blocks of the segment from `first` on, unless they are in the window. `false`
    /// if they do not exist, or do not fit.
    pub fn show(
        &mut self,
        reader: &mut Reader<'_>,
        shape: Shape,
        segment: SegmentId,
        first: u32,
        count: u32,
    ) -> Result<bool, Errno> {
        let Some(end) = first.checked_add(count).filter(|end| *end <= shape.segment_blocks) else {
            return Ok(false);
        };
        if segment == self.segment && first >= self.blocks.start && end <= self.blocks.end {
            return Ok(true);
        }
        let start = shape.address(segment, first);
        let in_file = reader.blocks().saturating_sub(u64::from(start.get()));
        let in_segment = u64::from(shape.segment_blocks - first);
        let blocks = in_file.min(in_segment).min(u64::from(WINDOW_BLOCKS)) as u32;
        if blocks < count {
            return Ok(false);
        }
        let buffer = self.buffer.get_or_insert_with(|| {
            let most = WINDOW_BLOCKS.min(shape.segment_blocks) as usize;
            AlignedBuf::zeroed(most * BLOCK_BYTES)
        });
        self.blocks = 0..0;
        let mut read =
            |blocks: u32| reader.read(start, &mut buffer[..blocks as usize * BLOCK_BYTES]);
        // The blocks beyond `count` were read in advance: they need not be readable.
        let blocks = match read(blocks) {
            Err(_) if blocks > count => read(count).map(|()| count),
            outcome => outcome.map(|()| blocks),
        }?;
        self.segment = segment;
        self.blocks = first..first + blocks;
        Ok(true)
    }

    /// Returns a block that has been shown.
    pub fn block(&self, number: u32) -> &[u8] {
        let start = (number - self.blocks.start) as usize * BLOCK_BYTES;
        let buffer = self.buffer.as_ref().expect("a block is shown before it is looked at");
        &buffer[start..start + BLOCK_BYTES]
    }
}
