//! The input of layout readers: a disk in bytes, a part of it, and limits of what is read.
//!
//! All content is written by a guest. So every address may be arbitrary, and a reader stops at the
//! first structure that it cannot read: `None` means "not there, not readable, or too much".

use std::ops::Range;

use flowstone_block::mutated;

/// A disk that can be read in bytes.
pub trait ReadBytes {
    /// Fills `target` from byte `at` of the disk on; `None` if it cannot be read.
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()>;

    /// Returns the logical block size, in which addresses on the disk count.
    fn block_bytes(&self) -> u64 {
        512
    }
}

/// The most bytes that one reading of a disk takes: enough for the group descriptors of 64 TiB of
/// ext4.
const BYTES_MAX: u64 = 64 << 20;
/// The most reads that it takes.
const READS_MAX: u32 = 16 << 10;
/// The most pieces of a volume.
const PIECES_MAX: usize = 4096;

/// A disk with a limit on reading.
pub struct Scan<'disk> {
    source: &'disk mut dyn ReadBytes,
    bytes: u64,
    bytes_left: u64,
    reads_left: u32,
}

impl<'disk> Scan<'disk> {
    /// Starts a reading of a disk of `bytes` bytes.
    pub fn new(source: &'disk mut dyn ReadBytes, bytes: u64) -> Self {
        Self { source, bytes, bytes_left: BYTES_MAX, reads_left: READS_MAX }
    }

    /// Returns the logical block size.
    pub fn block_bytes(&self) -> u64 {
        self.source.block_bytes()
    }

    /// Returns the whole disk.
    pub fn volume(&self) -> Volume {
        Volume::new([Piece { start: 0, disk: 0, bytes: self.bytes }])
    }

    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        let bytes = target.len() as u64;
        let is_outside = at.checked_add(bytes)? > self.bytes;
        let is_outside = mutated("classify.scan.reads-past-the-end", is_outside, false);
        if is_outside {
            return None;
        }
        let charged = mutated("classify.scan.reads-without-end", bytes, 0);
        self.bytes_left = self.bytes_left.checked_sub(charged)?;
        self.reads_left = self.reads_left.checked_sub(1)?;
        self.source.read(at, target)
    }
}

/// A range of a volume, and its place on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its start in the volume.
    pub start: u64,
    /// Its start on the disk.
    pub disk: u64,
    /// Its length.
    pub bytes: u64,
}

/// The device of a file system: the disk, a partition or a logical volume. Ranges of a logical
/// volume that are on other disks are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Sorted by start, disjoint, none of them empty.
    pieces: Vec<Piece>,
}

impl Volume {
    /// Makes a volume of those pieces that are plausible.
    pub fn new(pieces: impl IntoIterator<Item = Piece>) -> Self {
        let fits = |piece: &Piece| {
            let ends = |start: u64| start.checked_add(piece.bytes).is_some();
            piece.bytes > 0 && ends(piece.start) && ends(piece.disk)
        };
        let mut pieces: Vec<_> = pieces.into_iter().take(PIECES_MAX).filter(fits).collect();
        pieces.sort_unstable_by_key(|piece| piece.start);
        let mut end = 0;
        pieces.retain(|piece| {
            let follows = piece.start >= end;
            if follows {
                end = piece.start + piece.bytes;
            }
            follows
        });
        Self { pieces }
    }

    /// Returns the number of pieces.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the end of the last piece, in bytes of the volume.
    pub fn bytes(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.start + last.bytes)
    }

    /// Returns the part of it from `start` on, at most `bytes` long.
    pub fn part(&self, start: u64, bytes: u64) -> Self {
        let mut pieces = Vec::new();
        self.for_each_piece(start..start.saturating_add(bytes), |piece| {
            pieces.push(Piece { start: piece.start - start, ..piece });
        });
        Self { pieces }
    }

    /// Returns the same volume with its disk addresses translated by `disk`, itself a part of a
    /// disk.
    pub fn within(&self, disk: &Self) -> Self {
        let mut pieces = Vec::new();
        for piece in &self.pieces {
            disk.for_each_piece(piece.disk..piece.disk + piece.bytes, |part| {
                let start = piece.start + (part.start - piece.disk);
                pieces.push(Piece { start, ..part });
            });
        }
        Self::new(pieces)
    }

    /// Calls `visit` with the disk ranges of a range of the volume.
    pub fn on_disk(&self, range: Range<u64>, mut visit: impl FnMut(Range<u64>)) {
        self.for_each_piece(range, |piece| visit(piece.disk..piece.disk + piece.bytes));
    }

    /// Fills `target` from byte `at` of the volume on.
    pub fn read(&self, scan: &mut Scan<'_>, at: u64, target: &mut [u8]) -> Option<()> {
        let range = at..at.checked_add(target.len() as u64)?;
        let mut filled = 0;
        let mut outcome = Some(());
        self.for_each_piece(range, |piece| {
            let from = (piece.start - at) as usize;
            let to = from + piece.bytes as usize;
            outcome = outcome.and_then(|()| scan.read(piece.disk, &mut target[from..to]));
            filled += piece.bytes;
        });
        outcome.filter(|()| filled == target.len() as u64)
    }

    /// Reads an array from byte `at` on.
    pub fn read_array<const N: usize>(&self, scan: &mut Scan<'_>, at: u64) -> Option<[u8; N]> {
        let mut array = [0; N];
        self.read(scan, at, &mut array)?;
        Some(array)
    }

    fn for_each_piece(&self, range: Range<u64>, mut visit: impl FnMut(Piece)) {
        let first = self.pieces.partition_point(|piece| piece.start + piece.bytes <= range.start);
        for piece in &self.pieces[first..] {
            if piece.start >= range.end {
                return;
            }
            let start = piece.start.max(range.start);
            let bytes = (piece.start + piece.bytes).min(range.end) - start;
            if bytes > 0 {
                visit(Piece { start, disk: piece.disk + (start - piece.start), bytes });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64, disk: u64, bytes: u64) -> Piece {
        Piece { start, disk, bytes }
    }

    fn on_disk(volume: &Volume, range: Range<u64>) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        volume.on_disk(range, |range| found.push(range));
        found
    }

    #[test]
    fn a_range_of_a_volume_is_where_its_pieces_are() {
        let volume = Volume::new([piece(100, 5000, 100), piece(0, 9000, 100)]);
        assert_eq!(volume.bytes(), 200);
        assert_eq!(on_disk(&volume, 50..150), [9050..9100, 5000..5050]);
        assert_eq!(on_disk(&volume, 80..1000), [9080..9100, 5000..5100]);
        let part = volume.part(90, 20);
        assert_eq!(on_disk(&part, 0..20), [9090..9100, 5000..5010]);
        assert_eq!(part.bytes(), 20);
    }

    #[test]
    fn pieces_that_cannot_be_are_left_out() {
        let volume = Volume::new([
            piece(0, 0, 100),
            piece(50, 1000, 100),
            piece(u64::MAX, 0, 2),
            piece(200, u64::MAX, 2),
            piece(300, 0, 0),
        ]);
        assert_eq!(volume, Volume::new([piece(0, 0, 100)]));
    }

    struct Pattern;

    impl ReadBytes for Pattern {
        fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
            target.iter_mut().zip(at..).for_each(|(byte, at)| *byte = at as u8);
            Some(())
        }
    }

    #[test]
    fn what_is_missing_or_too_much_is_not_read() {
        let mut disk = Pattern;
        let mut scan = Scan::new(&mut disk, 1 << 40);
        let volume = Volume::new([piece(0, 10, 2), piece(2, 40, 2), piece(5, 60, 10)]);
        assert_eq!(volume.read_array(&mut scan, 0), Some([10, 11, 40, 41]));
        assert_eq!(volume.read_array::<6>(&mut scan, 0), None, "byte 4 is on another disk");
        let beyond = Volume::new([piece(0, (1 << 40) - 1, 2)]);
        assert_eq!(beyond.read_array::<2>(&mut scan, 0), None);
        let mut large = vec![0; 8 << 20];
        let disk = scan.volume();
        let times = (0..100).take_while(|_| disk.read(&mut scan, 0, &mut large).is_some()).count();
        assert_eq!(times, 7, "64 MiB in all");
    }
}
