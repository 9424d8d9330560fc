//! Opens an image: superblock, map, and the records after the checkpoint.
//!
//! Everything read here may be damaged, cut short, or made by an attacker: each number
//! is checked before it is used, and work is bounded by the size of the file.

use std::collections::BTreeMap;

use flowstone_block::{AlignedBuf, Sector, mutated};
use flowstone_fileio::FileIo;
use flowstone_image::{Flaw, Progress};
use flowstone_log_format::{
    Address, BLOCK_BYTES, BLOCK_SECTORS, Bounds, Codec, HeadPlace, LEAF_ON_DISK_BLOCKS, LeafPlace,
    MapEntry, Root, RootPlace, SegmentId, SegmentNote, Shape, Superblock, blocks_of_sectors,
};

use flowstone_log_store::Reader;
use flowstone_log_store::segments::{Segment, SegmentTable, State};

use super::lost_tail::segments_of;
use super::refusal::{LoadError, damaged, damaged_at};
use super::replay::{Medium, Replay, replay};
use super::slots::read_superblock;
use super::volume::map::{BlockMap, LEAF_BLOCKS};

/// Places of the leaves of the newest checkpoint, by number.
pub type LeafPlaces = BTreeMap<u32, LeafPlace>;

/// An image as loaded from the file.
pub struct Loaded {
    pub superblock: Superblock,
    pub shape: Shape,
    pub codec: Codec,
    pub map: BlockMap,
    pub segments: SegmentTable,
    pub leaves: LeafPlaces,
    pub replay: Replay,
}

/// Reads the whole image except its data.
pub fn load(file: &dyn FileIo, progress: Option<&Progress>) -> Result<Loaded, LoadError> {
    load_from(file, read_superblock(file)?, progress, |_, error| Err(error))
}

/// Reads the image that this superblock names. `bad_leaf` decides about an unusable leaf: fail, or
/// go on without it.
pub fn load_from(
    file: &dyn FileIo,
    superblock: Superblock,
    progress: Option<&Progress>,
    bad_leaf: impl FnMut(&LeafPlace, LoadError) -> Result<(), LoadError>,
) -> Result<Loaded, LoadError> {
    let shape = superblock.shape();
    let codec = Codec::new(&superblock.identity);
    let mut reader = Reader::open(file)?;
    let file_blocks = reader.blocks();
    let bounds = Bounds {
        blocks: blocks_of_sectors(superblock.capacity_sectors),
        segments: superblock.segments,
        segment_blocks: superblock.segment_blocks,
    };
    let root = read_root(&mut reader, &superblock, bounds)?;
    let map = BlockMap::default();
    let leaves = read_leaves(&mut reader, &root.leaves, &map, bounds, bad_leaf)?;
    let of_new = shape.segments_for(bounds.blocks).unwrap_or(bounds.segments);
    let limit = mutated("log.load.limit-of-a-new-image", superblock.segments, of_new);
    let mut segments = SegmentTable::new(shape, limit, superblock.session + 1);
    note_sealed(&root, &superblock, file_blocks, &mut segments)?;
    let mut medium = Medium { reader: &mut reader, shape, codec, progress };
    let mut replay = if superblock.clean {
        Replay::nothing(&superblock)
    } else {
        if let Some(progress) = progress {
            progress.begin(segments_of(shape, file_blocks, &segments).saturating_sub(1).into());
        }
        replay(&mut medium, &superblock, &map, &mut segments)?
    };
    let looks = mutated("log.open.lost-tail-unchecked", replay.damage.is_none(), false);
    if looks {
        replay.damage = medium.find_lost_tail(&superblock, &replay, &segments)?;
        replay.is_stale = superblock.clean && replay.damage.is_some();
    }
    count_live(&map, &superblock, &leaves, file_blocks, shape, &mut segments)?;
    if superblock.clean {
        reopen(&replay, &mut segments);
    }
    segments.rebuild_lists();
    Ok(Loaded { superblock, shape, codec, map, segments, leaves, replay })
}

/// Sets the segments that the checkpoint names.
fn note_sealed(
    root: &Root,
    superblock: &Superblock,
    file_blocks: u64,
    segments: &mut SegmentTable,
) -> Result<(), LoadError> {
    for note in &root.segments {
        check_note(note, superblock, file_blocks)?;
        let segment = Segment {
            state: State::Sealed,
            lifetime: note.lifetime as u8,
            incarnation: note.incarnation,
            birth: note.birth,
            sealed: note.birth,
            ..Segment::default()
        };
        segments.set(note.segment, segment);
    }
    Ok(())
}

/// Reopens the heads that an image was closed with. Their segments are pinned: replay must find
/// records appended from now on.
fn reopen(replay: &Replay, segments: &mut SegmentTable) {
    for (lifetime, head) in (0..).zip(replay.heads) {
        if head.incarnation.is_none() {
            continue;
        }
        let segment = segments.get(head.segment);
        let pinned = mutated("log.reopen.head-unpinned", true, false);
        let (state, incarnation) = (State::Open, head.incarnation);
        let open = Segment { state, lifetime, incarnation, pinned, ..segment };
        segments.set(head.segment, open);
    }
}

/// Checks that a segment in use lies inside the file: it was fully allocated when the checkpoint
/// was made, unless it had never been written to.
fn check_note(
    note: &SegmentNote,
    superblock: &Superblock,
    file_blocks: u64,
) -> Result<(), LoadError> {
    let unused = |head: &HeadPlace| head.segment == note.segment && head.block == 0;
    if superblock.heads.iter().any(unused) {
        return Ok(());
    }
    let start = superblock.shape().address(note.segment, 0);
    let blocks = u64::from(superblock.segment_blocks);
    check_inside(start, blocks, file_blocks, "a segment in use")
}

fn read_root(
    reader: &mut Reader<'_>,
    superblock: &Superblock,
    bounds: Bounds,
) -> Result<Root, LoadError> {
    let RootPlace { address, blocks, checksum, bytes } = superblock.root;
    if blocks == 0 {
        return Ok(Root::default());
    }
    check_inside(address, u64::from(blocks), reader.blocks(), "the map root")?;
    let mut buffer = AlignedBuf::zeroed(blocks as usize * BLOCK_BYTES);
    reader.read(address, &mut buffer)?;
    if crc32c::crc32c(&buffer) != checksum {
        return Err(damaged_at(address, "the checksum of the map root does not fit"));
    }
    Root::decode(&buffer[..bytes as usize], bounds).map_err(|what| damaged_at(address, what))
}

fn check_inside(at: Address, blocks: u64, file_blocks: u64, what: &str) -> Result<(), LoadError> {
    let end = u64::from(at.get()) + blocks;
    if end <= file_blocks {
        return Ok(());
    }
    let missing = (end - file_blocks) * BLOCK_BYTES as u64;
    Err(damaged_at(at, format!("the file is cut short: {what} ends {missing} bytes after it")))
}

/// Maximum number of leaves read at once, into a shared buffer.
const LEAVES_AT_ONCE: usize = 256;

/// Reads the leaves into the map; returns the addresses of those it has read.
fn read_leaves(
    reader: &mut Reader<'_>,
    places: &[LeafPlace],
    map: &BlockMap,
    bounds: Bounds,
    mut bad_leaf: impl FnMut(&LeafPlace, LoadError) -> Result<(), LoadError>,
) -> Result<LeafPlaces, LoadError> {
    let leaf_bytes = LEAF_ON_DISK_BLOCKS as usize * BLOCK_BYTES;
    let mut buffer = AlignedBuf::zeroed(places.len().min(LEAVES_AT_ONCE) * leaf_bytes);
    let mut found = LeafPlaces::new();
    let mut inside = Vec::with_capacity(places.len());
    let in_file = reader.blocks();
    for place in places {
        match check_inside(place.address, LEAF_ON_DISK_BLOCKS.into(), in_file, "a map leaf") {
            Ok(()) => inside.push(place),
            Err(error) => bad_leaf(place, error)?,
        }
    }
    for batch in inside.chunks(LEAVES_AT_ONCE) {
        let addresses = batch.iter().map(|place| place.address);
        let reads = addresses.zip(buffer.chunks_exact_mut(leaf_bytes)).collect();
        let outcomes = reader.read_each(reads);
        for ((place, bytes), read) in
            batch.iter().zip(buffer.chunks_exact(leaf_bytes)).zip(outcomes)
        {
            let sound =
                read.map_err(LoadError::Host).and_then(|()| check_leaf(place, bytes, bounds));
            match sound {
                Ok(()) => {
                    map.load_leaf(place.leaf, bytes);
                    found.insert(place.leaf, **place);
                }
                Err(error) => bad_leaf(place, error)?,
            }
        }
    }
    Ok(found)
}

/// Checks that a leaf has the root's checksum, and that each entry is unmapped or an address in a
/// segment.
fn check_leaf(place: &LeafPlace, bytes: &[u8], bounds: Bounds) -> Result<(), LoadError> {
    let leaf = place.leaf;
    let first = u64::from(leaf) * LEAF_BLOCKS;
    let damaged = |what: String| {
        let flaw = Flaw::new(what).at(place.address.offset());
        LoadError::Damaged(flaw.of(Sector::new(first * BLOCK_SECTORS)))
    };
    if crc32c::crc32c(bytes) != place.checksum {
        return Err(damaged(format!("the checksum of map leaf {leaf} does not fit")));
    }
    let end = u64::from(bounds.segments) * u64::from(bounds.segment_blocks);
    let mut mapped = 0;
    for (lba, bytes) in (first..).zip(bytes.chunks_exact(8)) {
        let bits = u64::from_le_bytes(bytes.try_into().expect("chunks of 8 bytes"));
        let address = u64::from(MapEntry::from_bits(bits).address().get());
        if bits == 0 {
            continue;
        }
        mapped += 1;
        if !(u64::from(bounds.segment_blocks)..end).contains(&address) {
            return Err(damaged(format!("map leaf {leaf} names a place outside the image")));
        }
        if lba >= bounds.blocks {
            return Err(damaged(format!("map leaf {leaf} maps blocks beyond the disk")));
        }
    }
    // Otherwise a few bytes of a file could claim any amount of memory.
    if mapped == 0 {
        return Err(damaged(format!("map leaf {leaf} is named and maps nothing")));
    }
    Ok(())
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
    for (_, map_entry) in map.all_mapped(blocks_of_sectors(superblock.capacity_sectors)) {
        let address = map_entry.address();
        live[shape.segment_of(address).index()] += 1;
        last = last.max(address);
    }
    if last != Address::NOWHERE {
        check_inside(last, 1, file_blocks, "data")?;
    }
    for place in leaves.values() {
        live[shape.segment_of(place.address).index()] += LEAF_ON_DISK_BLOCKS;
    }
    if superblock.root.blocks > 0 {
        live[shape.segment_of(superblock.root.address).index()] += superblock.root.blocks;
    }
    for (number, count) in
        (0..).map(SegmentId::new).zip(live).skip(1).filter(|(_, count)| *count > 0)
    {
        if count > superblock.segment_blocks {
            return Err(damaged(format!("more blocks are mapped to segment {number} than it has")));
        }
        let segment = segments.get(number);
        let state = if segment.state == State::Free { State::Sealed } else { segment.state };
        segments.set(number, Segment { state, live: count, ..segment });
    }
    Ok(())
}
