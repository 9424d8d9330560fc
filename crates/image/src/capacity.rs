//! Valid disk sizes.

use flowstone_block::SectorCount;

/// Converts a size in bytes to sectors, or returns why no disk can have it.
pub fn valid_capacity(bytes: u64) -> Result<SectorCount, &'static str> {
    // File offsets are signed 64-bit numbers (off_t).
    const BYTES_MAX: u64 = i64::MAX as u64;
    match SectorCount::from_bytes(bytes) {
        Some(capacity) if capacity.get() == 0 => Err("its size is 0"),
        Some(_) if bytes > BYTES_MAX => Err("no host file can be that large"),
        Some(capacity) => Ok(capacity),
        None => Err("its size is not a multiple of 512 bytes"),
    }
}
