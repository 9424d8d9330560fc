//! Shared memory that can be taken away while we use it, and what is done then.
//!
//! Another process may truncate what it has shared with us; a page that was never touched may find
//! its file system full; hardware may lose a page. The kernel's answer to us is SIGBUS, whose
//! default ends the process, and with it the disks of all guests. So memory of that kind is
//! registered here. A fault inside of it puts a page of zeroes in the place of the lost one, so
//! that the access goes on, and marks the memory broken for good. Its users look at the mark after
//! they have touched the memory, and believe nothing that they have read there once it is set. Any
//! other SIGBUS ends the process as before.
//!
//! The handler runs in the middle of anything: it takes no lock and allocates nothing. It walks a
//! list of entries that are never freed, only used again.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use crate::{IoVec, mutant};

/// A registered range of memory, until this is dropped: before the memory is unmapped.
#[derive(Debug)]
pub struct Guarded(&'static Entry);

/// A range that is registered now, or was.
#[derive(Debug, Default)]
struct Entry {
    /// Odd while the rest is being changed.
    version: AtomicUsize,
    start: AtomicUsize,
    end: AtomicUsize,
    /// What can be replaced at a time: the size of a page of the mapping.
    unit: AtomicUsize,
    broken: AtomicBool,
    /// The one that was made before this; never changes.
    next: Option<&'static Self>,
}

/// The entry made last.
static NEWEST: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());
/// How many of the ranges that are registered now are broken.
static BROKEN: AtomicUsize = AtomicUsize::new(0);
/// Entries to be used again. Locked while any entry is changed.
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
        let mut idle = idle();
        let entry = idle.pop().unwrap_or_else(Entry::make);
        let start = start as usize;
        entry.change(start..start + bytes, page_bytes.next_power_of_two());
        Self(entry)
    }

    /// Whether something of it has been lost.
    #[inline]
    pub fn is_broken(&self) -> bool {
        is_any_broken() && self.0.broken.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let mut idle = idle();
        self.0.change(0..0, 1);
        if self.0.broken.swap(false, Ordering::AcqRel) {
            BROKEN.fetch_sub(1, Ordering::AcqRel);
        }
        idle.push(self.0);
    }
}

/// Whether what has just been read from `pieces` is what is there: none of them lies in memory that
/// is broken. Costs next to nothing while no memory is.
#[inline]
pub fn is_whole<'list, List>(pieces: List) -> bool
where
    List: IntoIterator<Item = &'list IoVec> + Clone,
{
    // What was read before was read before the count is.
    fence(Ordering::Acquire);
    !is_any_broken() || mutant("block.guarded.believes-what-was-lost") || !lies_in_broken(pieces)
}

/// Whether any registered memory is broken.
#[inline]
pub fn is_any_broken() -> bool {
    BROKEN.load(Ordering::Acquire) > 0
}

/// Whether one of them does. Looks at each range once, whatever the pieces are: those of one guest
/// may be hundreds, and all others ask as long as one of them is broken.
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

fn idle() -> MutexGuard<'static, Vec<&'static Entry>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: entries are leaked, and whole before they are shown.
    let newest = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
    std::iter::successors(newest, |entry| entry.next)
}

impl Entry {
    /// A new one, in the list. The lock is held.
    fn make() -> &'static Self {
        // SAFETY: as in `entries`.
        let next = unsafe { NEWEST.load(Ordering::Acquire).as_ref() };
        let entry = Box::leak(Box::new(Self { next, ..Self::default() }));
        NEWEST.store(entry, Ordering::Release);
        entry
    }

    /// The lock is held.
    fn change(&self, range: std::ops::Range<usize>, unit: usize) {
        self.version.fetch_add(1, Ordering::SeqCst);
        self.start.store(range.start, Ordering::SeqCst);
        self.end.store(range.end, Ordering::SeqCst);
        self.unit.store(unit, Ordering::SeqCst);
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Start, end and unit. Nothing while it is being changed, which it is not while somebody uses
    /// its memory.
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

    /// Puts zeroes in the place of the page at `address`.
    fn replace(&self, address: usize, (start, end, unit): (usize, usize, usize)) -> bool {
        // First: who reads the zeroes finds the mark. The count before the mark: a thread that
        // finds the mark of another one goes on to zeroes of its own, and is to find the count,
        // too.
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

/// Only atomics and system calls: it interrupts anything.
extern "C" fn on_bus_error(signal: i32, info: *const libc::siginfo_t, _: *const libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo_t (SA_SIGINFO); errno is this thread's.
    let (address, is_fault, errno) =
        unsafe { ((*info).si_addr() as usize, (*info).si_code > 0, *libc::__errno_location()) };
    let is_survived = is_fault
        && !mutant("block.guarded.does-not-catch")
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
