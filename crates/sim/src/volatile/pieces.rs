//! Contents held by a volatile cache: for every byte of the file, at most one newest content that
//! is not in the file yet.

use std::collections::BTreeMap;
use std::ops::Range;

/// Largest part in which held data is kept, so that splitting one copies little.
const PART_BYTES_MAX: usize = 64 << 10;

/// Held content of a range, newer than the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes, one for each byte of the range.
    Data(Box<[u8]>),
    /// Zeroes; the space is to be freed.
    Punch,
    /// Zeroes; the space is kept.
    Zero,
}

/// Disjoint ranges with their contents.
#[derive(Debug, Default)]
pub struct Pieces {
    /// By start: end and content.
    held: BTreeMap<u64, (u64, Content)>,
    data_bytes: u64,
}

impl Pieces {
    /// Returns the bytes of data held.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Holds data for the bytes from `at` on.
    pub fn put_data(&mut self, at: u64, data: &[u8]) {
        self.forget(at..at + data.len() as u64);
        for (start, part) in (at..).step_by(PART_BYTES_MAX).zip(data.chunks(PART_BYTES_MAX)) {
            self.insert(start..start + part.len() as u64, Content::Data(part.into()));
        }
    }

    /// Holds zeroes of one kind for a range.
    pub fn put_zeroes(&mut self, range: Range<u64>, content: Content) {
        self.forget(range.clone());
        if !range.is_empty() {
            self.insert(range, content);
        }
    }

    /// Drops the held content of a range, which is outdated or in the file.
    pub fn forget(&mut self, range: Range<u64>) {
        for (start, end) in self.overlapping(&range) {
            let (_, content) = self.held.remove(&start).expect("was just found");
            if let Content::Data(data) = &content {
                self.data_bytes -= data.len() as u64;
            }
            for rest in [start..range.start.min(end), range.end.max(start)..end] {
                if !rest.is_empty() {
                    self.insert(rest.clone(), content.part(start, rest));
                }
            }
        }
    }

    /// Overlays held content on `target`, which begins at byte `at` of the file.
    pub fn read(&self, at: u64, target: &mut [u8]) {
        let range = at..at + target.len() as u64;
        for (start, end) in self.overlapping(&range) {
            let common = start.max(range.start)..end.min(range.end);
            let place = &mut target[(common.start - at) as usize..(common.end - at) as usize];
            match self.held[&start].1.part(start, common) {
                Content::Data(data) => place.copy_from_slice(&data),
                Content::Punch | Content::Zero => place.fill(0),
            }
        }
    }

    /// Returns whether anything is held for the range.
    pub fn touch(&self, range: &Range<u64>) -> bool {
        !self.overlapping(range).is_empty()
    }

    /// Returns the end of the last data held.
    pub fn data_end(&self) -> u64 {
        let is_data = |content: &Content| matches!(content, Content::Data(_));
        self.held.values().rev().find(|(_, it)| is_data(it)).map_or(0, |(end, _)| *end)
    }

    /// Returns the zeroes held for parts of the range.
    pub fn zeroes_in(&self, range: &Range<u64>) -> Vec<(Range<u64>, Content)> {
        let found = self.overlapping(range).into_iter();
        found
            .filter(|(start, _)| !matches!(self.held[start].1, Content::Data(_)))
            .map(|(start, end)| (start..end, self.held[&start].1.clone()))
            .collect()
    }

    /// Returns the first content held; contiguous data is joined, up to `bytes_max`.
    pub fn first(&self, bytes_max: usize) -> Option<(Range<u64>, Content)> {
        let (&start, (end, content)) = self.held.first_key_value()?;
        if !matches!(content, Content::Data(_)) {
            return Some((start..*end, content.clone()));
        }
        let mut data = Vec::new();
        for (at, (_, content)) in &self.held {
            match content {
                Content::Data(part)
                    if *at == start + data.len() as u64
                        && (data.is_empty() || data.len() + part.len() <= bytes_max) =>
                {
                    data.extend_from_slice(part);
                }
                _ => break,
            }
        }
        Some((start..start + data.len() as u64, Content::Data(data.into())))
    }

    fn insert(&mut self, range: Range<u64>, content: Content) {
        if let Content::Data(data) = &content {
            self.data_bytes += data.len() as u64;
        }
        self.held.insert(range.start, (range.end, content));
    }

    fn overlapping(&self, range: &Range<u64>) -> Vec<(u64, u64)> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.held.range(..range.start).next_back();
        before
            .into_iter()
            .chain(self.held.range(range.clone()))
            .map(|(start, (end, _))| (*start, *end))
            .filter(|(_, end)| *end > range.start)
            .collect()
    }
}

impl Content {
    /// Returns the content of `part` of a range that begins at `start`.
    fn part(&self, start: u64, part: Range<u64>) -> Self {
        match self {
            Self::Data(data) => {
                Self::Data(data[(part.start - start) as usize..(part.end - start) as usize].into())
            }
            Self::Punch => Self::Punch,
            Self::Zero => Self::Zero,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads over a file of sevens.
    fn view(pieces: &Pieces) -> Vec<u8> {
        let mut bytes = vec![7; 16];
        pieces.read(100, &mut bytes);
        bytes
    }

    #[test]
    fn the_newest_content_wins_byte_by_byte() {
        let mut pieces = Pieces::default();
        pieces.put_data(102, &[1; 8]);
        pieces.put_zeroes(104..106, Content::Punch);
        pieces.put_data(109, &[2; 3]);
        assert_eq!(view(&pieces), [7, 7, 1, 1, 0, 0, 1, 1, 1, 2, 2, 2, 7, 7, 7, 7]);
        assert_eq!((pieces.data_bytes(), pieces.data_end()), (8, 112));
        pieces.forget(103..110);
        assert_eq!(view(&pieces), [7, 7, 1, 7, 7, 7, 7, 7, 7, 7, 2, 2, 7, 7, 7, 7]);
        assert_eq!(pieces.data_bytes(), 3);
        assert!(pieces.touch(&(111..112)) && !pieces.touch(&(103..110)));
    }

    #[test]
    fn a_random_sequence_reads_like_plain_memory() {
        let mut random = fastrand::Rng::with_seed(4);
        let (mut pieces, mut model) = (Pieces::default(), [7; 64]);
        for step in 0..20_000 {
            let start = random.usize(0..64);
            let end = random.usize(start..=64);
            let range = start as u64..end as u64;
            match random.u8(0..4) {
                0 => {
                    // In the file now, with its previous content: the view does not change, so the
                    // model keeps only what the file has.
                    pieces.forget(range);
                    model[start..end].fill(7);
                }
                1 => {
                    pieces.put_zeroes(range, Content::Zero);
                    model[start..end].fill(0);
                }
                _ => {
                    pieces.put_data(start as u64, &vec![step as u8; end - start]);
                    model[start..end].fill(step as u8);
                }
            }
            let mut bytes = [7; 64];
            pieces.read(0, &mut bytes);
            assert_eq!(bytes, model, "step {step}");
        }
    }

    #[test]
    fn neighbours_come_out_as_one_and_in_the_order_of_the_file() {
        let mut pieces = Pieces::default();
        pieces.put_data(512, &[2; 512]);
        pieces.put_zeroes(2048..4096, Content::Zero);
        pieces.put_data(0, &[1; 512]);
        let (range, content) = pieces.first(4096).unwrap();
        assert_eq!(range, 0..1024);
        assert_eq!(content, Content::Data([[1; 512], [2; 512]].concat().into()));
        assert_eq!(pieces.first(512).unwrap().0, 0..512);
        pieces.forget(range);
        assert_eq!(pieces.first(4096), Some((2048..4096, Content::Zero)));
        assert_eq!(pieces.zeroes_in(&(0..2049)), [(2048..4096, Content::Zero)]);
        pieces.forget(0..4096);
        assert_eq!(pieces.first(4096), None);
    }
}
