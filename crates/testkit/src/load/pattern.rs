//! Self-describing blocks, which contain where and when they were written.
//!
//! ```text
//! magic:8  byte offset on the disk:8  generation:8  seed:8  random words ...  crc32c:8
//! ```
//! All little-endian; the checksum covers everything before it, and the random words depend on all
//! words before them. So torn, stale, misplaced and foreign blocks are told apart.

use crate::{Error, Result};

/// Unit of the pattern; smaller requests are a unit of their own.
pub(super) const UNIT_BYTES: usize = 4096;
const MAGIC: u64 = 0x656e_6f74_7377_6f6c;
const HEADER_WORDS: usize = 4;
const WORD: usize = 8;

/// The inputs of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    /// Byte offset on the disk.
    pub(super) offset: u64,
    /// Number of the write to this block.
    pub(super) generation: u32,
    /// The seed of the run.
    pub(super) seed: u64,
}

/// Fills `data`, which is at the stamp's offset, unit by unit.
pub(super) fn fill(data: &mut [u8], stamp: Stamp) {
    let mut offset = stamp.offset;
    for unit in data.chunks_mut(UNIT_BYTES) {
        fill_unit(unit, Stamp { offset, ..stamp });
        offset += unit.len() as u64;
    }
}

/// Checks that `data` is what `fill` would have written.
pub(super) fn check(data: &[u8], stamp: Stamp) -> Result<()> {
    let mut offset = stamp.offset;
    for unit in data.chunks(UNIT_BYTES) {
        check_unit(unit, Stamp { offset, ..stamp })?;
        offset += unit.len() as u64;
    }
    Ok(())
}

/// Checks that `data`, read at `offset`, is all zeroes.
pub(super) fn check_zero(data: &[u8], offset: u64) -> Result<()> {
    match data.iter().position(|&byte| byte != 0) {
        None => Ok(()),
        Some(at) => {
            let found = data[at];
            let at = offset + at as u64;
            Err(Error::Verify(format!("byte {at:#x} should be zero and is {found:#04x}")))
        }
    }
}

fn fill_unit(unit: &mut [u8], stamp: Stamp) {
    let end = unit.len() - WORD;
    let header = [MAGIC, stamp.offset, u64::from(stamp.generation), stamp.seed];
    for (word, value) in unit[..end].chunks_exact_mut(WORD).zip(header) {
        word.copy_from_slice(&value.to_le_bytes());
    }
    let mut random = stamp.offset ^ stamp.seed.rotate_left(17) ^ u64::from(stamp.generation) << 40;
    for word in unit[HEADER_WORDS * WORD..end].chunks_exact_mut(WORD) {
        random = mix(random);
        word.copy_from_slice(&random.to_le_bytes());
    }
    let sum = u64::from(crc32c::crc32c(&unit[..end]));
    unit[end..].copy_from_slice(&sum.to_le_bytes());
}

fn check_unit(unit: &[u8], expected: Stamp) -> Result<()> {
    let word = |at: usize| {
        u64::from_le_bytes(unit[at * WORD..][..WORD].try_into().expect("units hold these words"))
    };
    let fail = |what: String| {
        let Stamp { offset, generation, .. } = expected;
        Err(Error::Verify(format!("block at {offset:#x}, generation {generation}: {what}")))
    };
    if word(0) != MAGIC {
        let zero = unit.iter().all(|&byte| byte == 0);
        return fail(if zero { "all zeroes".into() } else { format!("magic {:#x}", word(0)) });
    }
    let end = unit.len() - WORD;
    let sum = u64::from(crc32c::crc32c(&unit[..end]));
    let (offset, generation, seed) = (word(1), word(2), word(3));
    if sum != word(end / WORD) {
        return fail(format!("torn (says offset {offset:#x}, generation {generation})"));
    }
    if offset != expected.offset {
        return fail(format!("misplaced, belongs to {offset:#x} (generation {generation})"));
    }
    if seed != expected.seed {
        return fail(format!("written by the run with seed {seed}"));
    }
    if generation != u64::from(expected.generation) {
        return fail(format!("holds generation {generation}"));
    }
    Ok(())
}

/// Does one step of a multiplicative generator, with its high bits folded in.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    word ^ (word >> 29)
}
