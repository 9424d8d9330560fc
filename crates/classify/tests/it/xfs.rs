//! The log and the headers of real XFS file systems, against xfs_db.

use flowstone_classify::Place;
use flowstone_testkit::truth::Truth;

use crate::disk::{Disk, GIB, compare, extent, make};

fn check(options: &str) {
    println!("mkfs.xfs {options}");
    let disk = Disk::new(GIB);
    make("mkfs.xfs", &format!("-q -f -L called {options}"), disk.file.path());
    let truth = Truth::of_xfs(disk.path());
    let layout = disk.layout();
    compare(&layout, &truth, 512);
    assert_eq!(layout.found()[0].kind, "xfs");
}

#[test]
fn as_mkfs_makes_it() {
    check("");
}

#[test]
fn other_sizes() {
    check("-b size=1024 -d agcount=7");
    check("-s size=4096 -d agsize=128m -l size=70m");
}

/// The remains of an ext4 file system are not found after mkfs.xfs, and vice versa.
#[test]
fn the_newer_of_two_file_systems_counts() {
    let disk = Disk::new(GIB);
    for (program, kind) in
        [("mkfs.ext4", "ext4"), ("mkfs.xfs", "xfs"), ("mkfs.ext4", "ext4"), ("mkfs.xfs", "xfs")]
    {
        let options = if kind == "xfs" { "-q -f" } else { "-q -F" };
        make(program, options, disk.file.path());
        let layout = disk.layout();
        assert_eq!(layout.found().len(), 1);
        assert_eq!(layout.found()[0].kind, kind);
    }
}

#[test]
fn its_log_may_be_elsewhere() {
    let disk = Disk::new(GIB);
    let log = Disk::new(GIB);
    make("mkfs.xfs", &format!("-q -f -l logdev={},size=64m", log.path()), disk.file.path());
    let layout = disk.layout();
    assert_eq!((layout.found()[0].kind, layout.found()[0].journal_bytes), ("xfs", 0));
    assert_eq!(layout.place(extent(0, 2048)), Place::Metadata);
}
