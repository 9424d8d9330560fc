//! The two superblock slots: selects the valid one, and checks its numbers.

use std::collections::BTreeSet;

use flowstone_block::{AlignedBuf, mutant};
use flowstone_fileio::{BlockingFile, FileIo};
use flowstone_log_format::{
    Address, BLOCK_BYTES, HeadPlace, RESERVE_PERCENT, RootPlace, SEGMENT_BYTES, SLOTS, SegmentId,
    Shape, Superblock, SuperblockError, blocks_of_sectors, root_blocks,
};

use super::log::append::STREAMS_MAX;
use super::refusal::{LoadError, damaged, damaged_at};
use super::volume::map::LEAF_BLOCKS;

/// Content of the two superblock slots.
pub type Slots = [Result<Superblock, SuperblockError>; 2];

/// Reads both slots.
pub fn read_slots(file: &dyn FileIo) -> Result<Slots, LoadError> {
    let size = file.size().map_err(LoadError::of_host)?;
    let mut reader = BlockingFile::new(file).map_err(LoadError::of_host)?;
    let mut read = |slot: Address| -> Result<_, LoadError> {
        if slot.offset().get() + BLOCK_BYTES as u64 > size {
            return Ok(Err(SuperblockError::SHORT));
        }
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        reader.read(slot.offset(), &mut block)?;
        let block: &[u8; BLOCK_BYTES] = (&*block).try_into().expect("a buffer of one block");
        Ok(Superblock::decode(block))
    };
    Ok([read(SLOTS[0])?, read(SLOTS[1])?])
}

/// Returns the newest valid superblock, if its numbers are plausible.
pub fn newest(slots: &Slots) -> Result<&Superblock, LoadError> {
    let refusals = || slots.iter().filter_map(|slot| slot.as_ref().err());
    if let Some(SuperblockError::Future(why)) =
        refusals().find(|it| matches!(it, SuperblockError::Future(_)))
    {
        return Err(LoadError::Unsupported(why.clone()));
    }
    let whole = slots.iter().filter_map(|slot| slot.as_ref().ok());
    if let Some(superblock) = whole.max_by_key(|superblock| superblock.generation) {
        check_superblock(superblock)?;
        return Ok(superblock);
    }
    let broken = refusals().find_map(|refusal| match refusal {
        SuperblockError::Damaged(why) if *refusal != SuperblockError::SHORT => Some(*why),
        _ => None,
    });
    Err(broken.map_or(LoadError::Foreign, damaged))
}

/// Returns the superblock to open an image with: the newest, if it is certain which one that is.
///
/// A power cut leaves whole sectors, and all fields of a superblock are in its first one, so it
/// never damages a slot. A damaged slot is therefore real damage, and the lost superblock may be
/// the newer one, which covers writes, and reuse of space, that the other does not.
pub fn read_superblock(file: &dyn FileIo) -> Result<Superblock, LoadError> {
    let slots = read_slots(file)?;
    let superblock = newest(&slots)?;
    match lost_slot(&slots).filter(|_| !mutant("log.open.lost-superblock-unchecked")) {
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

/// Returns the slot, `A` or `B`, that held a superblock and does not any more.
pub fn lost_slot(slots: &Slots) -> Option<char> {
    match slots {
        [Ok(other), Err(refusal)] if is_lost(other, refusal) => Some('B'),
        [Err(refusal), Ok(other)] if is_lost(other, refusal) => Some('A'),
        _ => None,
    }
}

/// Only an image that has never been opened for writing has a single superblock.
fn is_lost(other: &Superblock, refusal: &SuperblockError) -> bool {
    other.generation > 1 || *refusal != SuperblockError::Foreign
}

/// Far above any real counter, and far from where sums overflow.
const COUNTERS_MAX: u64 = 1 << 62;
/// Incarnations have this many bits for the session.
const SESSIONS_MAX: u64 = (1 << 32) - 1;

/// Refuses a superblock with implausible numbers: its checksum proves only that it is complete.
fn check_superblock(superblock: &Superblock) -> Result<(), LoadError> {
    let shape = shape_of(superblock);
    let segment_bytes = u64::from(superblock.segment_blocks) * BLOCK_BYTES as u64;
    let sound = superblock.segment_blocks.is_power_of_two()
        && (SEGMENT_BYTES.contains(&segment_bytes) || segment_bytes == SEGMENT_BYTES.end)
        && RESERVE_PERCENT.contains(&superblock.reserve_percent)
        && (1..=STREAMS_MAX as u32).contains(&superblock.streams)
        && superblock.capacity_sectors > 0
        && superblock.capacity_sectors <= 1 << 35
        && shape.segments_for(blocks_of_sectors(superblock.capacity_sectors)).is_some()
        && superblock.segments > 1
        && u64::from(superblock.segments) * u64::from(superblock.segment_blocks) <= 1 << 32;
    if !sound {
        return Err(damaged("the superblock has sizes that cannot be"));
    }
    let counters = [superblock.generation, superblock.next_sequence.get(), superblock.clock];
    if counters.iter().any(|count| *count >= COUNTERS_MAX) || superblock.session >= SESSIONS_MAX {
        return Err(damaged("the superblock has numbers that cannot be"));
    }
    // All that a root may name must fit in one record.
    let leaves = blocks_of_sectors(superblock.capacity_sectors).div_ceil(LEAF_BLOCKS);
    let root_max = root_blocks(leaves, u64::from(superblock.segments));
    if root_max + 2 > u64::from(superblock.segment_blocks) {
        return Err(damaged("the superblock has segments too small for its disk"));
    }
    check_heads(superblock)?;
    let RootPlace { address, blocks, bytes, .. } = superblock.root;
    let root_end = u64::from(address.get()) + u64::from(blocks);
    let image_end = u64::from(superblock.segments) * u64::from(superblock.segment_blocks);
    let root_sound = blocks == 0
        || address.get() > superblock.segment_blocks
            && root_end <= image_end
            && u64::from(blocks) <= root_max
            && bytes <= u64::from(blocks) * BLOCK_BYTES as u64;
    if root_sound { Ok(()) } else { Err(damaged("the superblock names a map root that cannot be")) }
}

/// Checks that every stream of guest data has a head, and every head a segment of its own.
fn check_heads(superblock: &Superblock) -> Result<(), LoadError> {
    let heads = || superblock.heads.iter().filter(|head| !head.incarnation.is_none());
    let inside = |head: &HeadPlace| {
        (1..superblock.segments).contains(&head.segment.get())
            && head.block < superblock.segment_blocks
    };
    if !heads().all(inside) {
        return Err(damaged("the superblock names a head outside the image"));
    }
    let distinct: BTreeSet<SegmentId> = heads().map(|head| head.segment).collect();
    let streams = &superblock.heads[..superblock.streams as usize];
    if distinct.len() < heads().count() || streams.iter().any(|head| head.incarnation.is_none()) {
        return Err(damaged("the superblock names heads that cannot be"));
    }
    Ok(())
}

/// Returns the shape of the image that a superblock describes.
pub fn shape_of(superblock: &Superblock) -> Shape {
    Shape {
        segment_blocks: superblock.segment_blocks,
        reserve_percent: superblock.reserve_percent,
        streams: superblock.streams,
    }
}
