//! Checksums of blocks in memory that a guest may be writing to.

use flowstone_block::IoVec;
use flowstone_log_format::{BLOCK_BYTES, MapEntry};

/// Returns whether the memory, one block per map entry, matches the checksums of the entries. Bytes
/// are copied out first: guest memory must not be read twice for one decision.
pub fn blocks_match(pieces: &[IoVec], map_entries: &[MapEntry]) -> bool {
    let mut block = [0; BLOCK_BYTES];
    let mut rest = pieces.iter().copied();
    let mut piece = None::<IoVec>;
    map_entries.iter().all(|map_entry| {
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let Some(current) = piece.take().or_else(|| rest.next()) else { return false };
            let part = current.truncate(BLOCK_BYTES - filled);
            let target = block[filled..filled + part.bytes()].as_mut_ptr();
            // SAFETY: the piece is valid until its request completes, and `block` is our own.
            unsafe { std::ptr::copy_nonoverlapping(part.address(), target, part.bytes()) };
            filled += part.bytes();
            let left = current.skip(part.bytes());
            piece = (left.bytes() > 0).then_some(left);
        }
        crc32c::crc32c(&block) == map_entry.checksum()
    })
}
