//! The map root: the leaves of the map, and the segments in use. Layout: docs/format.md section 5.

use super::address::{Address, BLOCK_BYTES};
use super::ids::{Incarnation, SegmentId};
use super::record::LEAF_ON_DISK_BLOCKS;
use super::shape::{
    LEAF_BLOCKS, ROOT_HEADER_BYTES, ROOT_LEAF_BYTES, ROOT_SEGMENT_BYTES, root_blocks,
};

/// Address and checksum of a leaf of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafPlace {
    /// Number of the leaf.
    pub leaf: u32,
    /// Address of its first block.
    pub address: Address,
    /// CRC32C of its blocks.
    pub checksum: u32,
}

/// Entry of the root for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentNote {
    /// Number of the segment.
    pub segment: SegmentId,
    /// Stream that it belongs to.
    pub lifetime: u32,
    /// Its present use.
    pub incarnation: Incarnation,
    /// Clock when it was sealed.
    pub birth: u64,
}

/// A map root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// In ascending order.
    pub leaves: Vec<LeafPlace>,
    /// In ascending order.
    pub segments: Vec<SegmentNote>,
}

/// Limits that a root is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Blocks of the disk.
    pub blocks: u64,
    /// Segments of the image, segment 0 included.
    pub segments: u32,
    /// Blocks of a segment.
    pub segment_blocks: u32,
}

impl Root {
    /// Encodes the root as whole blocks.
    pub fn encode(&self) -> Vec<u8> {
        let blocks = root_blocks(self.leaves.len() as u64, self.segments.len() as u64);
        let mut bytes = Vec::with_capacity(blocks as usize * BLOCK_BYTES);
        bytes.extend_from_slice(&(self.leaves.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        bytes.resize(ROOT_HEADER_BYTES as usize, 0);
        for LeafPlace { leaf, address, checksum } in &self.leaves {
            for word in [*leaf, address.get(), *checksum] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        for note in &self.segments {
            bytes.extend_from_slice(&note.segment.get().to_le_bytes());
            bytes.extend_from_slice(&note.lifetime.to_le_bytes());
            bytes.extend_from_slice(&note.incarnation.bits().to_le_bytes());
            bytes.extend_from_slice(&note.birth.to_le_bytes());
        }
        bytes.resize(blocks as usize * BLOCK_BYTES, 0);
        bytes
    }

    /// Decodes a root, and refuses numbers that are out of range, duplicate or out of order.
    pub fn decode(bytes: &[u8], bounds: Bounds) -> Result<Self, &'static str> {
        let mut reader = Reader { rest: bytes };
        let leaf_count = reader.u32().ok_or("the map root is cut short")?;
        let segment_count = reader.u32().ok_or("the map root is cut short")?;
        let wanted = ROOT_HEADER_BYTES
            + u64::from(leaf_count) * ROOT_LEAF_BYTES
            + u64::from(segment_count) * ROOT_SEGMENT_BYTES;
        if wanted > bytes.len() as u64 {
            return Err("the map root says it is longer than it is");
        }
        reader.rest = &bytes[ROOT_HEADER_BYTES as usize..];
        let leaves: Option<Vec<_>> = (0..leaf_count).map(|_| reader.leaf()).collect();
        let segments: Option<Vec<_>> = (0..segment_count).map(|_| reader.segment()).collect();
        let root = Self {
            leaves: leaves.ok_or("the map root is cut short")?,
            segments: segments.ok_or("the map root is cut short")?,
        };
        root.check(bounds)?;
        Ok(root)
    }

    fn check(&self, bounds: Bounds) -> Result<(), &'static str> {
        if !self.leaves.is_sorted_by(|a, b| a.leaf < b.leaf) {
            return Err("the map root names a leaf twice");
        }
        let leaves = bounds.blocks.div_ceil(LEAF_BLOCKS);
        if self.leaves.last().is_some_and(|last| u64::from(last.leaf) >= leaves) {
            return Err("the map root names a leaf beyond the disk");
        }
        let mut starts: Vec<u32> = self.leaves.iter().map(|place| place.address.get()).collect();
        starts.sort_unstable();
        if starts.windows(2).any(|pair| pair[1] - pair[0] < LEAF_ON_DISK_BLOCKS) {
            return Err("the map root names leaves that overlap");
        }
        let end = u64::from(bounds.segments) * u64::from(bounds.segment_blocks);
        let inside = |place: &LeafPlace| {
            let start = u64::from(place.address.get());
            start >= u64::from(bounds.segment_blocks)
                && start + u64::from(LEAF_ON_DISK_BLOCKS) <= end
        };
        if !self.leaves.iter().all(inside) {
            return Err("the map root names a place outside the image");
        }
        if !self.segments.is_sorted_by(|a, b| a.segment < b.segment) {
            return Err("the map root names a segment twice");
        }
        let outside = |note: &SegmentNote| {
            note.segment == SegmentId::SUPERBLOCKS || note.segment.get() >= bounds.segments
        };
        if self.segments.iter().any(outside) {
            return Err("the map root names a segment outside the image");
        }
        Ok(())
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    fn leaf(&mut self) -> Option<LeafPlace> {
        let leaf = self.u32()?;
        Some(LeafPlace { leaf, address: Address::new(self.u32()?), checksum: self.u32()? })
    }

    fn segment(&mut self) -> Option<SegmentNote> {
        let segment = SegmentId::new(self.u32()?);
        let lifetime = self.u32()?;
        Some(SegmentNote {
            segment,
            lifetime,
            incarnation: Incarnation::from_bits(self.u64()?),
            birth: self.u64()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { blocks: 100 * LEAF_BLOCKS, segments: 20, segment_blocks: 64 };

    fn root() -> Root {
        let leaf = |leaf| LeafPlace { leaf, address: Address::new(64 + leaf), checksum: leaf };
        let note = |segment| SegmentNote {
            segment,
            lifetime: 2,
            incarnation: Incarnation::from_bits(9),
            birth: 7,
        };
        Root {
            leaves: vec![leaf(0), leaf(99)],
            segments: vec![note(SegmentId::new(1)), note(SegmentId::new(19))],
        }
    }

    #[test]
    fn a_root_comes_back_as_it_was() {
        assert_eq!(Root::decode(&root().encode(), BOUNDS), Ok(root()));
        assert_eq!(Root::decode(&Root::default().encode(), BOUNDS), Ok(Root::default()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refuses = |change: fn(&mut Root)| {
            let mut bad = root();
            change(&mut bad);
            assert!(Root::decode(&bad.encode(), BOUNDS).is_err());
        };
        refuses(|root| root.leaves[1].leaf = 100);
        refuses(|root| root.leaves[1].leaf = 0);
        refuses(|root| root.leaves[0].address = Address::new(63));
        refuses(|root| root.leaves[0].address = Address::new(64 + 99 - 3));
        refuses(|root| root.leaves[0].address = Address::new(20 * 64 - 3));
        refuses(|root| root.segments[0].segment = SegmentId::SUPERBLOCKS);
        refuses(|root| root.segments[1].segment = SegmentId::new(20));
        let mut cut = root().encode();
        cut[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Root::decode(&cut, BOUNDS).is_err());
        assert!(Root::decode(&[], BOUNDS).is_err());
    }
}
