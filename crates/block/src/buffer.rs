//! Memory of a request: borrowed guest memory ([`IoVec`]) and owned memory ([`AlignedBuf`]).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::pages::Pages;

/// One contiguous piece of a request's memory, laid out as the kernel's `struct iovec`.
///
/// It is an address, not a borrow: guest memory is shared with the guest, which may change it at
/// any time, so two reads of it may differ and nothing may be concluded from the first. The code
/// that builds an `IoVec` keeps the memory mapped until the request that carries it has completed.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct IoVec(libc::iovec);

// SAFETY: an IoVec is a plain address and length; `new` obliges its maker to keep the memory
// valid for as long as the request lives, on whichever thread that is.
unsafe impl Send for IoVec {}
// SAFETY: as above; an IoVec has no interior mutability of its own.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// Makes a piece of `bytes` bytes at `address`.
    ///
    /// # Safety
    /// The memory must stay valid for reads and writes until every request that carries this
    /// piece has been completed.
    pub const unsafe fn new(address: *mut u8, bytes: usize) -> Self {
        Self(libc::iovec { iov_base: address.cast(), iov_len: bytes })
    }

    /// Makes the piece that covers an owned buffer.
    ///
    /// # Safety
    /// As for [`IoVec::new`]: the buffer outlives the request.
    pub unsafe fn of(buffer: &mut [u8]) -> Self {
        // SAFETY: passed on to the caller.
        unsafe { Self::new(buffer.as_mut_ptr(), buffer.len()) }
    }

    /// Returns the address of the first byte.
    pub const fn address(self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// Returns the length in bytes.
    pub const fn bytes(self) -> usize {
        self.0.iov_len
    }

    /// Returns the piece without its first `bytes` bytes.
    ///
    /// # Panics
    /// If the piece is shorter than `bytes`.
    #[must_use]
    pub fn skip(self, bytes: usize) -> Self {
        assert!(bytes <= self.bytes(), "skipped past the end of a buffer");
        // SAFETY: stays inside the piece, whose maker vouched for it.
        unsafe { Self::new(self.address().add(bytes), self.bytes() - bytes) }
    }

    /// Returns the first `bytes` bytes of the piece, or all of it if it is shorter.
    #[must_use]
    pub fn truncate(self, bytes: usize) -> Self {
        // SAFETY: stays inside the piece, whose maker vouched for it.
        unsafe { Self::new(self.address(), self.bytes().min(bytes)) }
    }
}

/// Calls `visit` with the pieces of `range`, a range of the bytes of a list of pieces, in order.
///
/// # Panics
/// If the list is shorter than the range.
pub fn for_each_piece(list: &[IoVec], range: Range<usize>, mut visit: impl FnMut(IoVec)) {
    let (mut skip, mut left) = (range.start, range.len());
    for piece in list {
        if left == 0 {
            return;
        }
        let skipped = skip.min(piece.bytes());
        skip -= skipped;
        let part = piece.skip(skipped).truncate(left);
        if part.bytes() > 0 {
            left -= part.bytes();
            visit(part);
        }
    }
    assert!(left == 0, "a range within the request's memory");
}

/// Fills `target` from the memory of a write, from its byte `at` on.
pub fn gather(pieces: &[IoVec], at: usize, target: &mut [u8]) {
    let mut filled = 0;
    for_each_piece(pieces, at..at + target.len(), |piece| {
        let to = &mut target[filled..filled + piece.bytes()];
        // SAFETY: the maker of the piece keeps it valid; `to` has its length, and our memory is
        // never guest memory.
        unsafe { ptr::copy_nonoverlapping(piece.address(), to.as_mut_ptr(), to.len()) };
        filled += piece.bytes();
    });
}

/// Copies `source` to the memory of a read, from its byte `at` on.
pub fn scatter(mut source: &[u8], pieces: &[IoVec], at: usize) {
    for_each_piece(pieces, at..at + source.len(), |piece| {
        let (from, rest) = source.split_at(piece.bytes());
        // SAFETY: as for gather, the other way round.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), piece.address(), from.len()) };
        source = rest;
    });
}

/// Owned, zeroed memory, aligned for direct I/O on any device.
pub struct AlignedBuf {
    start: NonNull<u8>,
    layout: Layout,
    /// What it was cut from.
    slab: Option<Arc<Pages>>,
}

/// Memory from which buffers are cut one after the other, in huge pages if the host has some.
///
/// Direct I/O hands a device each run of adjacent physical pages as one piece. Of small pages every
/// one is a piece, and devices of virtual machines take a multiple of the time for those.
pub struct Slab {
    pages: Arc<Pages>,
    next: usize,
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

impl Slab {
    /// Reserves `bytes` bytes. The memory is taken when it is used, in steps of 2 MiB, and returned
    /// with the last buffer.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let pages = Pages::new(bytes + HUGE_PAGE_BYTES)?;
        pages.want_huge_pages();
        let next = (pages.at(0, 0) as usize).next_multiple_of(HUGE_PAGE_BYTES);
        Ok(Self { next: next - pages.at(0, 0) as usize, pages: Arc::new(pages) })
    }

    /// Cuts off a buffer; `None` if there is too little left.
    pub fn cut(&mut self, bytes: usize) -> Option<AlignedBuf> {
        let layout = layout_of(bytes).pad_to_align();
        let end = self.next.checked_add(layout.size()).filter(|end| *end <= self.pages.bytes())?;
        let start = NonNull::new(self.pages.at(self.next, layout.size()))?;
        self.next = end;
        let layout = layout_of(bytes);
        Some(AlignedBuf { start, layout, slab: Some(Arc::clone(&self.pages)) })
    }
}

/// Alignment that satisfies direct I/O everywhere: a page; no device requires more.
const DIRECT_IO_ALIGN: usize = 4096;

fn layout_of(bytes: usize) -> Layout {
    Layout::from_size_align(bytes.max(1), DIRECT_IO_ALIGN)
        .expect("a buffer smaller than the address space")
}

// SAFETY: AlignedBuf owns its allocation exclusively, like Box<[u8]>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads, as for Box<[u8]>.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// Allocates `bytes` zero bytes. Aborts the process if the host is out of memory: only for
    /// sizes that no guest chooses.
    pub fn zeroed(bytes: usize) -> Self {
        Self::try_zeroed(bytes).unwrap_or_else(|| handle_alloc_error(layout_of(bytes)))
    }

    /// Allocates `bytes` zero bytes; `None` if the host is out of memory.
    pub fn try_zeroed(bytes: usize) -> Option<Self> {
        let layout = layout_of(bytes);
        // SAFETY: the layout has a non-zero size.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start).map(|start| Self { start, layout, slab: None })
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation has this size and was zero-initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.layout.size()) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for deref; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.slab.is_none() {
            // SAFETY: allocated in `try_zeroed` with this very layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_the_host_has_not_got_is_no_buffer_and_no_end() {
        assert!(AlignedBuf::try_zeroed(1 << 60).is_none());
        assert_eq!(&AlignedBuf::try_zeroed(2).unwrap()[..], [0, 0]);
        assert!(Slab::new(1 << 60).is_err());
    }

    #[test]
    fn buffers_of_a_slab_are_apart_and_outlive_it() {
        let mut slab = Slab::new(3 * 4096).unwrap();
        let mut buffers = [4096, 1, 4096].map(|bytes| slab.cut(bytes).unwrap());
        assert!(slab.next <= slab.pages.bytes());
        drop(slab);
        for (content, buffer) in (1..).zip(&mut buffers) {
            assert!(buffer.iter().all(|byte| *byte == 0));
            assert!((buffer.as_ptr() as usize).is_multiple_of(DIRECT_IO_ALIGN));
            buffer.fill(content);
        }
        for (content, buffer) in (1..).zip(&buffers) {
            assert!(buffer.iter().all(|byte| *byte == content), "{content}");
        }
    }

    #[test]
    fn a_slab_asks_for_huge_pages_where_the_host_has_them() {
        let buffer = Slab::new(4096).unwrap().cut(4096).unwrap();
        let address = buffer.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let holds = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |digits| usize::from_str_radix(digits, 16).ok();
            let range = range.and_then(|(from, to)| Some(number(from)?..number(to)?));
            range.is_some_and(|range| range.contains(&address))
        };
        let lines = maps.lines().skip_while(|line| !holds(line));
        let flags = lines.skip(1).find(|line| line.starts_with("VmFlags:")).unwrap();
        let has_them = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(flags.split(' ').any(|flag| flag == "hg"), has_them, "{flags}");
    }

    #[test]
    fn a_slab_has_an_end() {
        let mut slab = Slab::new(64 << 10).unwrap();
        let mut bytes = 0;
        while let Some(buffer) = slab.cut(24 << 10) {
            bytes += buffer.len();
        }
        assert!((48 << 10..=HUGE_PAGE_BYTES + (64 << 10)).contains(&bytes), "{bytes}");
    }
}
