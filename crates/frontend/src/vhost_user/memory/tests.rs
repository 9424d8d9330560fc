use std::os::fd::FromRawFd;

use flowstone_testkit::fuse::FuseHost;

use super::*;

pub(super) fn memfd(bytes: u64) -> File {
    // SAFETY: the name is a C string; the descriptor returned is ours.
    let file = unsafe { File::from_raw_fd(libc::memfd_create(c"test".as_ptr(), 0)) };
    file.set_len(bytes).unwrap();
    file
}

pub(super) fn region(guest: u64, monitor: u64, bytes: u64) -> RegionAddresses {
    RegionAddresses { guest, monitor, bytes }
}

fn two_neighbours() -> GuestMemory {
    GuestMemory::default()
        .with_region(region(0x1000, 0x7000_0000, 0x1000), memfd(0x1000), 0)
        .unwrap()
        .with_region(region(0x2000, 0x9000_0000, 0x1000), memfd(0x1000), 0)
        .unwrap()
}

#[test]
fn a_range_may_cross_into_a_neighbouring_region_but_not_into_a_gap() {
    let memory = two_neighbours();
    let mut sizes = Vec::new();
    memory.pieces(0x1800, 0x1000, |piece| sizes.push(piece.bytes())).unwrap();
    assert_eq!(sizes, [0x800, 0x800]);
    assert_eq!(memory.pieces(0x2800, 0x801, |_| ()), Err(Unmapped));
    assert_eq!(memory.pieces(0xfff, 1, |_| ()), Err(Unmapped));
    assert_eq!(memory.pieces(u64::MAX, 2, |_| ()), Err(Unmapped));
}

#[test]
fn rings_must_lie_in_one_region() {
    let memory = two_neighbours();
    assert!(memory.from_monitor(0x7000_0000, 0x1000).is_ok());
    assert!(memory.from_monitor(0x7000_0800, 0x801).is_err());
    assert!(memory.from_monitor(0x7000_0000, u64::MAX).is_err());
    assert!(memory.from_guest(0x1800, 0x1000).is_err());
}

#[test]
fn overlapping_wrapping_and_short_regions_are_refused() {
    let memory = two_neighbours();
    assert!(memory.with_region(region(0x1800, 0, 0x1000), memfd(0x1000), 0).is_err());
    assert!(memory.with_region(region(u64::MAX, 0, 2), memfd(0x1000), 0).is_err());
    assert!(memory.with_region(region(0x8000, 0, 0), memfd(0x1000), 0).is_err());
    assert!(memory.with_region(region(0x8000, 0, 0x2000), memfd(0x1000), 0).is_err());
    assert!(memory.with_region(region(0x8000, 0, 0x1000), memfd(0x1000), 0x1000).is_err());
}

/// Regression: a thread that serves several disks waited for the server of one guest's memory.
#[test]
fn memory_whose_server_could_stop_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    let Some(_host) = FuseHost::mount_or_skip(&at, &behind) else { return };
    let file = File::options().read(true).write(true).create_new(true).open(at.join("memory"));
    let file = file.unwrap();
    file.set_len(0x1000).unwrap();
    let refused = GuestMemory::default().with_region(region(0x1000, 0, 0x1000), file, 0);
    let said = refused.err().expect("it is refused").to_string();
    assert!(said.contains("memory-backend-memfd"), "{said}");
}

#[test]
fn a_removed_region_is_gone_and_the_others_stay() {
    let memory = two_neighbours();
    let less = memory.without_region(0x1000, 0x7000_0000).unwrap();
    assert!(less.from_guest(0x1000, 1).is_err());
    assert!(less.from_guest(0x2000, 1).is_ok());
    assert!(memory.without_region(0x1000, 0x9000_0000).is_err());
}
