use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

const PAGE: usize = 4096;

/// Maps a file of `pages` pages filled with ones.
fn mapped(pages: usize) -> (File, *mut u8) {
    let file = File::from(memfd_create("shared", MemfdFlags::CLOEXEC).unwrap());
    file.set_len((pages * PAGE) as u64).unwrap();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let descriptor = file.as_raw_fd();
    // SAFETY: a new mapping touches nothing of ours.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), pages * PAGE, access, libc::MAP_SHARED, descriptor, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: it was just mapped, as long as the file.
    unsafe { ptr::write_bytes(start.cast::<u8>(), 1, pages * PAGE) };
    (file, start.cast())
}

fn read(start: *mut u8, page: usize) -> u8 {
    // SAFETY: the tests map what they read, or mean to die of it.
    unsafe { start.add(page * PAGE).read_volatile() }
}

fn piece(start: *mut u8, page: usize) -> IoVec {
    // SAFETY: within the mapping of the test.
    unsafe { IoVec::new(start.add(page * PAGE), PAGE) }
}

/// A monitor that truncated its shared memory ended the daemon, and the disks of all guests.
#[test]
fn memory_that_is_taken_away_breaks_itself_and_no_other_one() {
    let [(file, lost), (_kept_file, kept)] = [mapped(3), mapped(3)];
    // SAFETY: the mappings stay until the process ends.
    let [guard, other] = [lost, kept].map(|start| unsafe { Guarded::new(start, 3 * PAGE, PAGE) });
    file.set_len(PAGE as u64).unwrap();
    assert!(!guard.is_broken() && is_whole(&[piece(lost, 2)]), "nothing has been touched yet");
    assert_eq!([0, 2].map(|page| read(lost, page)), [1, 0]);
    assert!(guard.is_broken() && !other.is_broken());
    assert!(!is_whole(&[piece(kept, 0), piece(lost, 0)]), "it may have been read before the mark");
    assert!(is_whole(&[piece(kept, 0)]));
    // Writes to the replaced page work while it is mapped.
    // SAFETY: within the mapping.
    unsafe { lost.add(PAGE).write_volatile(7) };
    assert_eq!([1, 2].map(|page| read(lost, page)), [7, 0]);
    drop(guard);
    assert!(is_whole(&[piece(lost, 0)]), "it is not registered any more");
}

/// A reused entry starts unbroken.
#[test]
fn a_range_has_nothing_of_the_one_before() {
    for _ in 0..3 {
        let (file, start) = mapped(1);
        // SAFETY: as above.
        let guard = unsafe { Guarded::new(start, PAGE, PAGE) };
        assert!(!guard.is_broken());
        file.set_len(0).unwrap();
        read(start, 0);
        assert!(guard.is_broken());
    }
}

#[test]
fn memory_that_is_not_registered_ends_the_process_as_ever() {
    let [(_file, start), (lost_file, lost)] = [mapped(1), mapped(1)];
    // SAFETY: as above. It has the handler installed.
    let _guard = unsafe { Guarded::new(start, PAGE, PAGE) };
    lost_file.set_len(0).unwrap();
    // SAFETY: the child reads one byte and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        read(lost, 0);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGBUS, "{status:#x}");
}

/// If a guest's memory is on a tmpfs, the first touch of a page may find it full.
#[test]
fn a_page_that_finds_its_file_system_full_breaks_its_memory() {
    let folder = tempfile::tempdir().unwrap();
    let at = CString::new(folder.path().as_os_str().as_bytes()).unwrap();
    // SAFETY: the names outlive the call.
    let mounted = unsafe {
        let (kind, options) = (c"tmpfs".as_ptr(), c"size=8k".as_ptr());
        libc::mount(kind, at.as_ptr(), kind, 0, options.cast())
    };
    if mounted != 0 {
        let error = std::io::Error::last_os_error();
        flowstone_testkit::skip(format_args!("this user may not mount a tmpfs: {error}"));
        return;
    }
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    let file = options.open(folder.path().join("memory")).unwrap();
    file.set_len(4 * PAGE as u64).unwrap();
    let descriptor = file.as_raw_fd();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping touches nothing of ours.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), 4 * PAGE, access, libc::MAP_SHARED, descriptor, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the mapping stays until the process ends.
    let guard = unsafe { Guarded::new(start.cast(), 4 * PAGE, PAGE) };
    let before: Vec<bool> = (0..4)
        .map(|page| {
            // SAFETY: within the mapping.
            unsafe { start.cast::<u8>().add(page * PAGE).write_volatile(1) };
            guard.is_broken()
        })
        .collect();
    // SAFETY: the name outlives the call.
    unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
    assert_eq!(before, [false, false, true, true]);
}
