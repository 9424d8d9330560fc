//! Contents of a disk: 4 KiB pages, shared copy-on-write between copies of the disk.
//!
//! A copy costs one reference per 256 KiB with content, so a crash test may keep a copy for each of
//! thousands of moments. A page that exists has space on the simulated host; a missing page reads
//! as zeroes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Unit in which the simulated host allocates space, in bytes.
pub const PAGE_BYTES: u64 = 4096;
/// Pages per shared chunk.
const CHUNK_PAGES: u64 = 64;

type Page = [u8; PAGE_BYTES as usize];

/// The page of all allocated but unwritten pages: allocating gigabytes costs no memory.
static UNWRITTEN: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; PAGE_BYTES as usize]));

/// Contents of a file. Everything beyond its end is zero, so that it can grow.
#[derive(Clone, Default)]
pub struct Medium {
    chunks: BTreeMap<u64, Arc<Chunk>>,
    page_count: u64,
    bytes: u64,
}

type Chunk = [Option<Arc<Page>>; CHUNK_PAGES as usize];

impl Medium {
    /// Makes an empty file of this size.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Makes a file with this content; pages of zeroes have no space.
    pub fn from_bytes(content: &[u8]) -> Self {
        let mut medium = Self::new(content.len() as u64);
        for (index, page) in content.chunks(PAGE_BYTES as usize).enumerate() {
            if page.iter().any(|byte| *byte != 0) {
                medium.write(index as u64 * PAGE_BYTES, page);
            }
        }
        medium
    }

    /// Returns the size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.bytes
    }

    /// Returns the allocated bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.page_count * PAGE_BYTES
    }

    /// Sets the size of the file.
    pub fn set_size(&mut self, bytes: u64) {
        if bytes < self.bytes {
            self.punch(bytes..self.bytes.next_multiple_of(PAGE_BYTES));
        }
        self.bytes = bytes;
    }

    /// Reads into `target` from `at`; zeroes beyond the end.
    pub fn read(&self, at: u64, target: &mut [u8]) {
        let mut rest = target;
        for (page, part) in parts(at..at + rest.len() as u64) {
            let (piece, after) = rest.split_at_mut(part.len());
            match self.page(page) {
                Some(content) => piece.copy_from_slice(&content[part]),
                None => piece.fill(0),
            }
            rest = after;
        }
    }

    /// Writes `source` at `at`, extending the file if needed.
    pub fn write(&mut self, at: u64, source: &[u8]) {
        let end = at + source.len() as u64;
        let mut rest = source;
        for (page, part) in parts(at..end) {
            let (piece, after) = rest.split_at(part.len());
            self.page_mut(page)[part].copy_from_slice(piece);
            rest = after;
        }
        if !source.is_empty() {
            self.bytes = self.bytes.max(end);
        }
    }

    /// Zeroes the range and frees the pages within it.
    pub fn punch(&mut self, range: Range<u64>) {
        for page in self.pages_in(&range) {
            let part = part_of(page, &range);
            if part.len() as u64 == PAGE_BYTES {
                self.remove(page);
            } else {
                self.page_mut(page)[part].fill(0);
            }
        }
    }

    /// Zeroes the range and allocates it, up to the end of the file.
    pub fn zero(&mut self, range: Range<u64>) {
        let end = range.end.min(self.bytes);
        for (page, part) in parts(range.start..end) {
            if part.len() as u64 == PAGE_BYTES {
                self.put_unwritten(page);
            } else {
                self.page_mut(page)[part].fill(0);
            }
        }
    }

    /// Allocates the range, extending the file if needed.
    pub fn allocate(&mut self, range: Range<u64>) {
        for (page, _) in parts(range.clone()) {
            if self.page(page).is_none() {
                self.put_unwritten(page);
            }
        }
        self.bytes = self.bytes.max(range.end);
    }

    /// Flips one bit of the byte at `at`, if that byte has space.
    pub fn flip(&mut self, at: u64, bit: u8) {
        if self.page(at / PAGE_BYTES).is_some() {
            self.page_mut(at / PAGE_BYTES)[(at % PAGE_BYTES) as usize] ^= 1 << bit;
        }
    }

    /// Returns the number of unallocated pages of the range.
    pub fn missing_pages(&self, range: Range<u64>) -> u64 {
        let touched = parts(range.clone()).len() as u64;
        touched - self.pages_in(&range).len() as u64
    }

    /// Returns the next written range at or after `from`.
    pub fn next_data(&self, from: u64) -> Option<Range<u64>> {
        let mut written = self.written_pages(from / PAGE_BYTES);
        let first = written.next()?;
        let mut next = first + 1;
        while written.next() == Some(next) {
            next += 1;
        }
        let start = from.max(first * PAGE_BYTES);
        let end = (next * PAGE_BYTES).min(self.bytes);
        (start < end).then_some(start..end)
    }

    fn written_pages(&self, first: u64) -> impl Iterator<Item = u64> {
        self.pages_from(first)
            .filter(|(_, content)| !Arc::ptr_eq(content, &UNWRITTEN))
            .map(|(page, _)| page)
    }

    /// Iterates over the allocated pages from `first` on.
    fn pages_from(&self, first: u64) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.chunks
            .range(first / CHUNK_PAGES..)
            .flat_map(|(chunk, content)| {
                (chunk * CHUNK_PAGES..)
                    .zip(content.iter())
                    .filter_map(|(page, content)| content.as_ref().map(|content| (page, content)))
            })
            .skip_while(move |(page, _)| *page < first)
    }

    /// Returns the allocated pages that the range touches.
    fn pages_in(&self, range: &Range<u64>) -> Vec<u64> {
        let touched = touched(range);
        self.pages_from(touched.start)
            .map(|(page, _)| page)
            .take_while(|page| *page < touched.end)
            .collect()
    }

    fn page(&self, page: u64) -> Option<&Arc<Page>> {
        self.chunks.get(&(page / CHUNK_PAGES))?[(page % CHUNK_PAGES) as usize].as_ref()
    }

    fn slot(&mut self, page: u64) -> &mut Option<Arc<Page>> {
        let empty = || Arc::new([const { None }; CHUNK_PAGES as usize]);
        let chunk = self.chunks.entry(page / CHUNK_PAGES).or_insert_with(empty);
        &mut Arc::make_mut(chunk)[(page % CHUNK_PAGES) as usize]
    }

    fn page_mut(&mut self, page: u64) -> &mut Page {
        if self.page(page).is_none() {
            self.put_unwritten(page);
        }
        let content = self.slot(page).get_or_insert_with(|| Arc::clone(&UNWRITTEN));
        Arc::make_mut(content)
    }

    fn put_unwritten(&mut self, page: u64) {
        if self.slot(page).replace(Arc::clone(&UNWRITTEN)).is_none() {
            self.page_count += 1;
        }
    }

    fn remove(&mut self, page: u64) {
        let slot = self.slot(page);
        if slot.take().is_some() {
            self.page_count -= 1;
        }
        let chunk = page / CHUNK_PAGES;
        if self.chunks.get(&chunk).is_some_and(|chunk| chunk.iter().all(Option::is_none)) {
            self.chunks.remove(&chunk);
        }
    }
}

/// Returns the numbers of the pages that a range touches.
fn touched(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES) }
}

/// Returns the part of a page that a range covers.
fn part_of(page: u64, range: &Range<u64>) -> Range<usize> {
    let start = page * PAGE_BYTES;
    let from = range.start.max(start) - start;
    let to = range.end.min(start + PAGE_BYTES) - start;
    from as usize..to as usize
}

/// Iterates over the pages that a range touches, with the part of each that it covers.
fn parts(range: Range<u64>) -> impl ExactSizeIterator<Item = (u64, Range<usize>)> {
    let Range { start, end } = touched(&range);
    // Counted in usize, since only such ranges know their length.
    (0..(end - start) as usize).map(move |index| {
        let page = start + index as u64;
        (page, part_of(page, &range))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_does_not_see_later_changes() {
        let mut medium = Medium::new(8192);
        medium.write(100, &[1; 5000]);
        let copy = medium.clone();
        medium.write(0, &[2; 8192]);
        medium.punch(4096..8192);
        let mut bytes = [0; 8192];
        copy.read(0, &mut bytes);
        assert!(bytes[100..5100].iter().all(|byte| *byte == 1) && bytes[5100] == 0);
        assert_eq!((copy.allocated_bytes(), medium.allocated_bytes()), (8192, 4096));
    }

    #[test]
    fn what_was_cut_off_is_zero_when_the_file_grows_again() {
        let mut medium = Medium::new(0);
        medium.write(0, &[7; 3 * 4096]);
        medium.set_size(5000);
        medium.set_size(3 * 4096);
        let mut bytes = vec![9; 3 * 4096];
        medium.read(0, &mut bytes);
        assert!(bytes[..5000].iter().all(|byte| *byte == 7));
        assert!(bytes[5000..].iter().all(|byte| *byte == 0));
        assert_eq!(medium.allocated_bytes(), 8192);
    }

    #[test]
    fn space_without_data_is_counted_and_skipped() {
        let mut medium = Medium::new(0);
        medium.allocate(0..1 << 30);
        assert_eq!((medium.size(), medium.allocated_bytes()), (1 << 30, 1 << 30));
        assert_eq!(medium.next_data(0), None);
        medium.write(1 << 20, &[1; 512]);
        medium.write((1 << 20) + 4096, &[1; 512]);
        assert_eq!(medium.next_data(5), Some(1 << 20..(1 << 20) + 8192));
        assert_eq!(medium.next_data((1 << 20) + 600), Some((1 << 20) + 600..(1 << 20) + 8192));
        assert_eq!(medium.next_data((1 << 20) + 8192), None);
        assert_eq!(medium.missing_pages((1 << 30) - 4096..(1 << 30) + 4097), 2);
        medium.punch(1 << 20..1 << 40);
        assert_eq!(medium.allocated_bytes(), 1 << 20);
        medium.zero((1 << 20) - 100..(1 << 20) + 100);
        assert_eq!(medium.allocated_bytes(), (1 << 20) + 4096, "zeroes keep or get space");
    }
}
