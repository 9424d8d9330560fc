//! Maps a request to parts of the host file, as far as tables in memory allow.

use std::ops::Range;

use flowstone_block::Extent;

use super::super::entry::Mapping;
use super::super::meta::{Filling, MappedPart, Meta, Source};
use super::super::shape::GuestCluster;

/// Plan of a request.
#[derive(Default)]
pub struct Plan {
    /// Transfers of the host file.
    pub pieces: Vec<Piece>,
    /// Ranges of the request that are read from the backing file.
    pub below: Vec<Range<u64>>,
    /// Ranges of the request's memory that read as zeroes.
    pub zeroes: Vec<Range<usize>>,
    /// Clusters that are filled for the first time.
    pub fills: Vec<GuestCluster>,
}

/// A part of a request, and its offset in the host file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Offset of its first byte in the request.
    pub at: u64,
    pub bytes: u64,
    pub offset: u64,
}

impl Plan {
    /// Returns the number of transfers that it needs.
    pub fn transfers(&self) -> usize {
        self.pieces.len() + self.below.len()
    }

    /// Plans a read. Returns `false` if it needs the slow path.
    pub fn read(&mut self, meta: &mut Meta, extent: Extent) -> bool {
        self.clear();
        let mut at = 0;
        while at < extent.bytes() {
            let Ok(MappedPart { source, bytes }) =
                meta.find(extent.start_bytes() + at, extent.bytes() - at)
            else {
                return false;
            };
            match source {
                Source::File { offset, .. } => self.pieces.push(Piece { at, bytes, offset }),
                Source::Zero => self.zeroes.push(at as usize..(at + bytes) as usize),
                Source::Backing => self.below.push(at..at + bytes),
                Source::Compressed(_) | Source::Damaged => return false,
            }
            at += bytes;
        }
        true
    }

    /// Plans a write, and claims the clusters that it needs. If it needs the slow path, claims
    /// nothing and returns `false`.
    pub fn write(&mut self, meta: &mut Meta, extent: Extent) -> bool {
        self.clear();
        let shape = meta.map.shape;
        let cluster_bytes = shape.cluster_bytes();
        let (start, end) = (extent.start_bytes(), extent.start_bytes() + extent.bytes());
        let first = shape.guest_at(start);
        let last = shape.guest_at(end - 1);
        let clusters = (first.0..=last.0).map(GuestCluster).map(|guest| {
            let from = start.max(shape.position(guest));
            (guest, from, end.min(shape.position(guest) + cluster_bytes) - from)
        });
        let mut wanted = 0;
        for (guest, _, bytes) in clusters.clone() {
            match meta.mapping(guest) {
                Ok(Some(Mapping::Data { ours: true, .. })) => {}
                Ok(Some(Mapping::Unallocated))
                    if bytes == cluster_bytes || meta.is_zero_below(guest) =>
                {
                    wanted += 1;
                }
                Ok(Some(Mapping::Zero { reserved: None })) => wanted += 1,
                _ => return false,
            }
            if meta.is_locked_exclusively(guest) {
                return false;
            }
        }
        if wanted > 0 && (!meta.has_room(wanted) || meta.is_full(wanted)) {
            return false;
        }
        for (guest, from, bytes) in clusters {
            let host = match meta.mapping(guest) {
                Ok(Some(Mapping::Data { host, .. })) => host,
                _ => {
                    let Filling::Write(host) = meta.fill(guest) else {
                        unreachable!("looked for room and for claims above, under the same lock");
                    };
                    self.fills.push(guest);
                    host
                }
            };
            let offset = shape.offset(host) + (from - shape.position(guest));
            self.add(Piece { at: from - start, bytes, offset });
        }
        true
    }

    fn add(&mut self, piece: Piece) {
        match self.pieces.last_mut() {
            Some(last) if last.offset + last.bytes == piece.offset => last.bytes += piece.bytes,
            _ => self.pieces.push(piece),
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.below.clear();
        self.zeroes.clear();
        self.fills.clear();
    }
}
