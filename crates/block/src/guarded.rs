//! Shared memory whose pages may vanish while it is mapped, and recovery from the SIGBUS.
//!
//! Another process may truncate the file that it has shared with us; the first touch of a page may
//! find its file system full; hardware may lose a page. The kernel reports all of these as SIGBUS,
//! whose default action ends the process, and with it the disks of all guests. So such memory is
//! registered here. A fault inside a registered range maps a page of zeroes in place of the lost
//! one, so that the access completes, and marks the range broken permanently. Users check the mark
//! after each access, and discard what they have read once it is set. Any other SIGBUS ends the
//! process as before.
//!
//! The handler may interrupt any code: it takes no lock and allocates nothing. It walks a list of
//! entries that are never freed, only reused.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, Once};

use crate::{IoVec, lock, mutated};

/// A registered range of memory. Must be dropped before the memory is unmapped.
#[derive(Debug)]
pub struct Guarded(&'static Entry);

/// A range that is or was registered.
#[derive(Debug, Default)]
struct Entry {
    /// Odd while the other fields are being changed (a sequence lock).
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Unit of replacement: the page size of the mapping.
    unit: AtomicUsize,
    broken: AtomicBool,
    /// The previously made entry; never changes.
    next: Option<&'static Self>,
}

/// Head of the list: the entry made last.
static NEWEST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// Number of registered ranges that are broken.
static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Entries free for reuse. Locked while any entry is changed.
static IDLE: Mutex<Vec<&'static Entry>> = Mutex::new(Vec::new());

impl Guarded {
    /// Registers a range that is mapped in pages of `page_bytes`.
    ///
    /// # Safety
    /// All of the range must stay mapped, readable and writable, until this is dropped, and its
    /// mapping must be the caller's: pages of it may be replaced by others at any time.
    pub unsafe fn new(start: *mut u8, bytes: usize, page_bytes: usize) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(install_handler);
        let mut idle = lock(&IDLE);
        let entry = idle.pop().unwrap_or_else(Entry::make);
        let start = start as usize;
        entry.change(start..start + bytes, page_bytes.next_power_of_two());
        Self(entry)
    }

    /// Returns whether a page of the range has been lost.
    #[inline]
    pub fn is_broken(&self) -> bool {
        is_any_broken() && self.0.broken.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let mut idle = lock(&IDLE);
        self.0.change(0..0, 1);
        if self.0.broken.swap(false, Ordering::AcqRel) {
            BROKEN.fetch_sub(1, Ordering::AcqRel);
        }
        idle.push(self.0);
    }
}

/// Returns whether data just read from `pieces` is valid: no piece lies in a broken range. Almost
/// free while no range is broken.
#[inline]
pub fn is_whole<'list, List>(pieces: List) -> bool
where
    List: IntoIterator<Item = &'list IoVec> + Clone,
{
    // Orders the reads of the pieces before the read of the count.
    fence(Ordering::Acquire);
    let is_lost = is_any_broken() && lies_in_broken(pieces);
    let is_lost = mutated("block.guarded.believes-what-was-lost", is_lost, false);
    !is_lost
}

/// Returns whether any registered range is broken.
#[inline]
pub fn is_any_broken() -> bool {
    BROKEN.load(Ordering::Acquire) > 0
}

/// Returns whether a piece lies in a broken range. Scans each range once whatever the number of
/// pieces: a request may have hundreds, and requests of all guests get here while one range is
/// broken.
#[cold]
fn lies_in_broken<'list>(pieces: impl IntoIterator<Item = &'list IoVec> + Clone) -> bool {
    let bounds =
        |piece: &IoVec| (piece.address() as usize, piece.address() as usize + piece.bytes());
    let all = pieces.clone().into_iter().map(bounds);
    let (first, last) = all.fold((usize::MAX, 0), |all, it| (all.0.min(it.0), all.1.max(it.1)));
    entries().any(|entry| {
        entry.broken.load(Ordering::Acquire)
            && entry.range().is_some_and(|(from, to, _)| {
                let touches = |(start, end)| from < end && start < to;
                touches((first, last)) && pieces.clone().into_iter().map(bounds).any(touches)
            })
    })
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries are leaked, and whole before they are shown.
    let newest = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    std::iter::successors(newest, |entry| entry.next)
}

impl Entry {
    /// Makes an entry and adds it to the list. The caller holds the lock.
    fn make() -> &'static Self {
        // SAFETY: as in `entries`.
        let next = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
        let entry = Box::leak(Box::new(Self { next, ..Self::default() }));
        NEWEST.store(entry, Ordering::Release);
        entry
    }

    /// Changes the entry to another range. The caller holds the lock.
    fn change(&self, range: std::ops::Range<usize>, unit: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(range.start, Ordering::SeqCst);
        self.end.store(range.end, Ordering::SeqCst);
        self.unit.store(unit, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns start, end and unit; `None` while they are being changed, which never happens while
    /// the range's memory is in use.
    fn range(&self) -> Option<(usize, usize, usize)> {
        let before = self.version.load(Ordering::SeqCst);
        let range = (
            self.start.load(Ordering::SeqCst),
            self.end.load(Ordering::SeqCst),
            self.unit.load(Ordering::SeqCst),
        );
        let is_whole = before.is_multiple_of(2) && self.version.load(Ordering::SeqCst) == before;
        is_whole.then_some(range)
    }

    /// Maps zeroes in place of the page at `address`.
    fn replace(&self, address: usize, (start, end, unit): (usize, usize, usize)) -> bool {
        // Set first: a thread that reads the zeroes must find the mark. The count is raised before
        // the mark: a thread that finds the mark set by another fault goes on to its own zeroes,
        // and must find the count raised, too.
        BROKEN.fetch_add(1, Ordering::SeqCst);
        if self.broken.swap(true, Ordering::SeqCst) {
            BROKEN.fetch_sub(1, Ordering::SeqCst);
        }
        let page = (address & !(unit - 1)).max(start);
        let bytes = (page + unit).min(end) - page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the page lies in a range whose owner allows this (`Guarded::new`).
        let mapped = unsafe { libc::mmap(page as *mut _, bytes, access, flags, -1, 0) };
        mapped != libc::MAP_FAILED
    }
}

fn install_handler() {
    // SAFETY: all zeroes is a valid sigaction; the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut());
    }
}

/// Uses only atomics and system calls, since it may interrupt any code.
extern "C" fn on_bus_error(signal: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo_t (SA_SIGINFO); errno is this thread's.
    let (address, is_fault, errno) =
        unsafe { ((*info).si_addr() as usize, (*info).si_code > 0, *libc::__errno_location()) };
    let is_fault = mutated("block.guarded.does-not-catch", is_fault, false);
    let is_survived = is_fault
        && entries().any(|entry| {
            let range = entry.range().filter(|(from, to, _)| (*from..*to).contains(&address));
            range.is_some_and(|range| entry.replace(address, range))
        });
    // SAFETY: as above; signal(2) and raise(3) may be called in a handler. The signal is delivered
    // when this returns.
    unsafe {
        if !is_survived {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests;
