//! Reads the two superblock slots of a file.

use flowstone_block::{AlignedBuf, mutated};
use flowstone_fileio::FileIo;
use flowstone_log_format::{
    Address, BLOCK_BYTES, SLOTS, Slots, Superblock, SuperblockError, lost_slot, newest,
};

use flowstone_log_store::Reader;

use super::refusal::{LoadError, damaged_at};

/// Reads both slots.
pub fn read_slots(file: &dyn FileIo) -> Result<Slots, LoadError> {
    let mut reader = Reader::open(file)?;
    let mut read = |slot: Address| -> Result<_, LoadError> {
        if u64::from(slot.get()) >= reader.blocks() {
            return Ok(Err(SuperblockError::SHORT));
        }
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        reader.read(slot, &mut block)?;
        let block: &[u8; BLOCK_BYTES] = (&*block).try_into().expect("a buffer of one block");
        Ok(Superblock::decode(block))
    };
    Ok([read(SLOTS[0])?, read(SLOTS[1])?])
}

/// Returns the superblock to open an image with: the newest, if it is certain which one that is.
///
/// A power cut leaves whole sectors, and all fields of a superblock are in its first one, so it
/// never damages a slot. A damaged slot is therefore real damage, and the lost superblock may be
/// the newer one, which covers writes, and reuse of space, that the other does not.
pub fn read_superblock(file: &dyn FileIo) -> Result<Superblock, LoadError> {
    let slots = read_slots(file)?;
    let superblock = newest(&slots)?;
    let lost = mutated("log.open.lost-superblock-unchecked", lost_slot(&slots), None);
    match lost {
        None => Ok(superblock.clone()),
        Some(slot) => Err(damaged_at(
            SLOTS[usize::from(slot == 'B')],
            format!(
                "superblock {slot} is damaged or missing, and the one that is left need not be \
                 the newest"
            ),
        )),
    }
}
