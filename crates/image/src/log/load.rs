//! Opening an image: superblock, map, and the records that came after the checkpoint.
//!
//! Everything read here may be damaged, cut short, or made by somebody who means harm: each number
//! is checked before it is used, and work is bounded by the size of the file.

use std::collections::BTreeMap;

use flowstone_block::{AlignedBuf, Errno};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset};

use super::address::{Address, BLOCK_BYTES, Word};
use super::map::{BlockMap, LEAF_BLOCKS};
use super::record::{Codec, LEAF_ON_DISK_BLOCKS};
use super::replay::{Replay, replay};
use super::root::{Bounds, LeafPlace, Root};
use super::segments::{Segment, SegmentTable, State};
use super::shape::{RESERVE_PERCENT, SEGMENT_BYTES, Shape, blocks_of_sectors};
use super::superblock::{HeadPlace, Refusal, RootPlace, SLOTS, Superblock};
use super::tail::STREAMS_MAX;

/// Where the leaves of the newest checkpoint are.
pub type LeafPlaces = BTreeMap<u32, (Address, u32)>;

/// An image as it is in the file.
pub struct Loaded {
    pub superblock: Superblock,
    pub shape: Shape,
    pub codec: Codec,
    pub map: BlockMap,
    pub segments: SegmentTable,
    pub leaves: LeafPlaces,
    pub replay: Replay,
}

/// Why an image cannot be opened.
#[derive(Debug)]
pub enum LoadError {
    /// It is not a log image, or of a later version.
    Unusable(String),
    /// It is one, and something in it is not as it was written.
    Damaged(String),
    /// The host could not read it.
    Host(Errno),
}

impl From<Errno> for LoadError {
    fn from(errno: Errno) -> Self {
        Self::Host(errno)
    }
}

fn damaged(why: impl Into<String>) -> LoadError {
    LoadError::Damaged(why.into())
}

/// The newest valid superblock.
pub fn read_superblock(file: &dyn FileIo) -> Result<Superblock, LoadError> {
    let size = file.size().map_err(|error| host(&error))?;
    let mut reader = BlockingFile::new(file).map_err(|error| host(&error))?;
    let mut newest: Option<Superblock> = None;
    let mut refusals = Vec::new();
    for slot in SLOTS {
        if slot.offset().get() + BLOCK_BYTES as u64 > size {
            refusals.push(Refusal::Damaged("the file is too short for a log image"));
            continue;
        }
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        reader.read(slot.offset(), &mut block)?;
        let block: &[u8; BLOCK_BYTES] = (&*block).try_into().expect("a buffer of one block");
        match Superblock::decode(block) {
            Ok(found) if newest.as_ref().is_none_or(|best| found.generation > best.generation) => {
                newest = Some(found);
            }
            Ok(_) => {}
            Err(refusal) => refusals.push(refusal),
        }
    }
    for refusal in &refusals {
        if let Refusal::Future(why) = refusal {
            return Err(LoadError::Unusable(why.clone()));
        }
    }
    let Some(superblock) = newest else {
        let damage = refusals.iter().find_map(|refusal| match refusal {
            Refusal::Damaged(why) => Some(*why),
            _ => None,
        });
        return Err(match damage {
            Some(why) if size > 0 => damaged(why),
            _ => LoadError::Unusable("it is not a log image".into()),
        });
    };
    check_superblock(&superblock)?;
    Ok(superblock)
}

/// Refuses a superblock whose numbers cannot be: its checksum proves only that it is whole.
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
    let inside = |head: &HeadPlace| {
        head.serial == 0
            || (1..superblock.segments).contains(&head.segment)
                && head.block < superblock.segment_blocks
    };
    if !superblock.heads.iter().all(inside) {
        return Err(damaged("the superblock names a head outside the image"));
    }
    let RootPlace { address, blocks, bytes, .. } = superblock.root;
    let root_end = u64::from(address.get()) + u64::from(blocks);
    let image_end = u64::from(superblock.segments) * u64::from(superblock.segment_blocks);
    let root_sound = blocks == 0
        || address.get() > superblock.segment_blocks
            && root_end <= image_end
            && blocks < superblock.segment_blocks
            && bytes <= u64::from(blocks) * BLOCK_BYTES as u64;
    if root_sound { Ok(()) } else { Err(damaged("the superblock names a map root that cannot be")) }
}

/// The layout that a superblock tells.
pub fn shape_of(superblock: &Superblock) -> Shape {
    Shape {
        segment_blocks: superblock.segment_blocks,
        reserve_percent: superblock.reserve_percent,
        streams: superblock.streams,
    }
}

fn host(error: &std::io::Error) -> LoadError {
    LoadError::Host(Errno::from_io_error(error).unwrap_or(Errno::IO))
}

/// Reads the whole image but its data.
pub fn load(file: &dyn FileIo) -> Result<Loaded, LoadError> {
    let superblock = read_superblock(file)?;
    let shape = shape_of(&superblock);
    let codec = Codec::new(&superblock.identity);
    let mut reader = BlockingFile::new(file).map_err(|error| host(&error))?;
    let file_blocks = file.size().map_err(|error| host(&error))? / BLOCK_BYTES as u64;
    let bounds = Bounds {
        leaves: blocks_of_sectors(superblock.capacity_sectors).div_ceil(LEAF_BLOCKS),
        segments: superblock.segments,
        segment_blocks: superblock.segment_blocks,
    };
    let root = read_root(&mut reader, &superblock, bounds, file_blocks)?;
    let map = BlockMap::default();
    read_leaves(&mut reader, &root.leaves, &map, bounds, file_blocks)?;
    let mut segments = SegmentTable::new(shape, superblock.segments, superblock.session + 1);
    for note in &root.segments {
        let segment = Segment {
            state: State::Sealed,
            class: note.class as u8,
            serial: note.serial,
            birth: note.birth,
            ..Segment::default()
        };
        segments.set(note.segment, segment);
    }
    let replay = if superblock.clean {
        Replay::nothing(&superblock)
    } else {
        replay(&mut reader, &superblock, shape, codec, file_blocks, &map, &mut segments)?
    };
    let leaves: LeafPlaces =
        root.leaves.iter().map(|place| (place.leaf, (place.address, place.checksum))).collect();
    count_live(&map, &superblock, &leaves, file_blocks, shape, &mut segments)?;
    for head in replay.heads.iter().filter(|head| head.serial != 0 && superblock.clean) {
        let segment = segments.get(head.segment);
        segments.set(head.segment, Segment { state: State::Open, serial: head.serial, ..segment });
    }
    segments.settle();
    Ok(Loaded { superblock, shape, codec, map, segments, leaves, replay })
}

fn read_root(
    reader: &mut BlockingFile,
    superblock: &Superblock,
    bounds: Bounds,
    file_blocks: u64,
) -> Result<Root, LoadError> {
    let RootPlace { address, blocks, checksum, bytes } = superblock.root;
    if blocks == 0 {
        return Ok(Root::default());
    }
    check_inside(address, u64::from(blocks), file_blocks, "the map root")?;
    let mut buffer = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
    reader.read(address.offset(), &mut buffer)?;
    if crc32c::crc32c(&buffer) != checksum {
        return Err(damaged("the checksum of the map root does not fit"));
    }
    Root::decode(&buffer[..bytes as usize], bounds).map_err(damaged)
}

fn check_inside(at: Address, blocks: u64, file_blocks: u64, what: &str) -> Result<(), LoadError> {
    let end = u64::from(at.get()) + blocks;
    if end <= file_blocks {
        return Ok(());
    }
    let missing = (end - file_blocks) * BLOCK_BYTES as u64;
    Err(damaged(format!("the file is cut short: {what} ends {missing} bytes after it")))
}

/// Leaves read at once: the buffer they share.
const LEAVES_AT_ONCE: usize = 256;

fn read_leaves(
    reader: &mut BlockingFile,
    places: &[LeafPlace],
    map: &BlockMap,
    bounds: Bounds,
    file_blocks: u64,
) -> Result<(), LoadError> {
    let leaf_bytes = LEAF_ON_DISK_BLOCKS as usize * BLOCK_BYTES;
    let mut buffer = AlignedBuf::zeroed(LEAVES_AT_ONCE * leaf_bytes);
    for batch in places.chunks(LEAVES_AT_ONCE) {
        for place in batch {
            check_inside(place.address, u64::from(LEAF_ON_DISK_BLOCKS), file_blocks, "a map leaf")?;
        }
        let mut reads: Vec<(FileOffset, &mut [u8])> = batch
            .iter()
            .zip(buffer.chunks_exact_mut(leaf_bytes))
            .map(|(place, target)| (place.address.offset(), target))
            .collect();
        reader.read_many(&mut reads)?;
        for (place, bytes) in batch.iter().zip(buffer.chunks_exact(leaf_bytes)) {
            if crc32c::crc32c(bytes) != place.checksum {
                return Err(damaged(format!(
                    "the checksum of map leaf {} does not fit",
                    place.leaf
                )));
            }
            check_leaf(place.leaf, bytes, bounds)?;
            map.load_leaf(place.leaf, bytes);
        }
    }
    Ok(())
}

/// Every word of a leaf names a place in a segment, or nothing.
fn check_leaf(leaf: u32, bytes: &[u8], bounds: Bounds) -> Result<(), LoadError> {
    let end = u64::from(bounds.segments) * u64::from(bounds.segment_blocks);
    let sound = |word: Word| {
        let address = u64::from(word.address().get());
        word.bits() == 0 || (u64::from(bounds.segment_blocks)..end).contains(&address)
    };
    let mut words = bytes.chunks_exact(8).map(|bytes| {
        Word::from_bits(u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes")))
    });
    if words.all(sound) {
        Ok(())
    } else {
        Err(damaged(format!("map leaf {leaf} names a place outside the image")))
    }
}

/// Counts the live blocks of every segment.
fn count_live(
    map: &BlockMap,
    superblock: &Superblock,
    leaves: &LeafPlaces,
    file_blocks: u64,
    shape: Shape,
    segments: &mut SegmentTable,
) -> Result<(), LoadError> {
    let mut live = vec![0u32; superblock.segments as usize];
    let mut last = Address::NOWHERE;
    let blocks = blocks_of_sectors(superblock.capacity_sectors);
    let mut at = 0;
    while let Some(lba) = map.next_mapped(at..blocks) {
        let address = map.get(lba).address();
        live[shape.segment_of(address) as usize] += 1;
        last = last.max(address);
        at = lba + 1;
    }
    if last != Address::NOWHERE {
        check_inside(last, 1, file_blocks, "data")?;
    }
    for (address, _) in leaves.values() {
        live[shape.segment_of(*address) as usize] += LEAF_ON_DISK_BLOCKS;
    }
    live[shape.segment_of(superblock.root.address) as usize] += superblock.root.blocks;
    for (number, count) in (0..).zip(live).skip(1).filter(|(_, count)| *count > 0) {
        if count > superblock.segment_blocks {
            return Err(damaged(format!("more blocks are mapped to segment {number} than it has")));
        }
        let segment = segments.get(number);
        let state = if segment.state == State::Free { State::Sealed } else { segment.state };
        segments.set(number, Segment { state, live: count, ..segment });
    }
    Ok(())
}
