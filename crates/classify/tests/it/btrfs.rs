//! btrfs: superblocks, and tree nodes by their headers.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flowstone_block::{BlockingDisk, Class, Sector};
use flowstone_classify::{Classify, DiskClasses, Place, Rule};
use flowstone_testkit::wait_until;

use crate::disk::{Disk, MIB, extent, make};
use crate::forged::kinds;
use crate::slow::{OfGuest, slow};

const NODE_BYTES: u64 = 4096;
const SUPERBLOCK_AT: u64 = 64 << 10;

fn btrfs_of_32_mib() -> Disk {
    let image = Disk::new(32 * MIB);
    make("mkfs.btrfs", "-q -M -n 4096 -s 4096 -L called", image.file.path());
    image
}

/// Returns the places of tree nodes.
fn nodes(image: &Disk) -> Vec<u64> {
    let mut bytes = vec![0; 32 * MIB as usize];
    image.file.as_file().read_exact_at(&mut bytes, 0).unwrap();
    let uuid = bytes[SUPERBLOCK_AT as usize + 32..][..16].to_vec();
    let begins = |at: &u64| bytes[*at as usize + 32..][..16] == uuid && *at != SUPERBLOCK_AT;
    (0..32 * MIB).step_by(NODE_BYTES as usize).filter(begins).collect()
}

struct Guest {
    disk: BlockingDisk,
    classes: Arc<DiskClasses>,
    _classify: Classify,
}

impl Guest {
    fn of(image: &Disk) -> Self {
        let classify = Classify::new(slow(image).0, 3);
        let classes = classify.classes();
        wait_until("the layout", || classes.readings() >= 1);
        let disk = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
        Self { disk, classes, _classify: classify }
    }

    /// Rewrites existing data after `change`. Returns whether it is classed as metadata by its
    /// header.
    fn is_known(&mut self, start: u64, change: impl FnOnce(&mut [u8]), bytes: u64) -> bool {
        let mut data = vec![0; bytes as usize];
        self.disk.read(Sector::new(start / 512), &mut data).unwrap();
        change(&mut data);
        let before = self.classes.of_rule(Rule::Header);
        let written = self.classes.of_class(Class::Metadata).writes;
        self.disk.write(Sector::new(start / 512), &mut data).unwrap();
        let is_known = self.classes.of_rule(Rule::Header) > before;
        assert_eq!(self.classes.of_class(Class::Metadata).writes > written, is_known);
        is_known
    }
}

#[test]
fn superblocks_never_move() {
    let layout = btrfs_of_32_mib().layout();
    assert_eq!(kinds(&layout), ["btrfs"]);
    let found = &layout.found()[0];
    assert_eq!((found.bytes, found.metadata_bytes, &*found.label), (32 * MIB, 4096, "called"));
    assert_eq!(layout.place(extent(SUPERBLOCK_AT, 4096)), Place::Metadata);
    assert_eq!(layout.place(extent(SUPERBLOCK_AT + 4096, 4096)), Place::FileSystem);
    assert!(layout.is_defined_by(extent(0, 4096)), "what replaces it begins there");
    let large = Disk::new(300 * MIB);
    make("mkfs.btrfs", "-q", large.file.path());
    assert_eq!(large.layout().place(extent(64 * MIB, 4096)), Place::Metadata);
}

#[test]
fn nodes_are_known_by_their_headers() {
    let image = btrfs_of_32_mib();
    let nodes = nodes(&image);
    let mut guest = Guest::of(&image);
    assert!(nodes.len() > 8, "{nodes:?}");
    assert!(nodes.iter().all(|at| guest.is_known(*at, |_| {}, NODE_BYTES)));
    let next = nodes.windows(2).find(|pair| pair[1] == pair[0] + NODE_BYTES).unwrap()[0];
    assert!(guest.is_known(next, |_| {}, 2 * NODE_BYTES));
    // Half a node is not recognised.
    assert!(!guest.is_known(next, |_| {}, 1024));
    assert!(!guest.is_known(next + 1024, |_| {}, NODE_BYTES));
    assert!(!guest.is_known(next, |_| {}, NODE_BYTES + 512));
    let mut each_change = |at: usize, value: u8| {
        let mut old = 0;
        let is_known =
            guest.is_known(next, |it| old = std::mem::replace(&mut it[at], value), NODE_BYTES);
        guest.is_known(next, |it| it[at] = old, NODE_BYTES);
        is_known
    };
    assert!(each_change(0, 99), "checksums are not counted again");
    // UUID, address, number of entries, level.
    for (at, value) in [(40, 99), (48, 1), (99, 99), (100, 8)] {
        assert!(!each_change(at, value), "{at}");
    }
    assert!(!guest.is_known(next, |it| it[4096..].fill(0), 2 * NODE_BYTES), "the second one");
}

/// With a metadata UUID of its own, the UUID of the file system may change.
#[test]
fn metadata_may_have_a_uuid_of_its_own() {
    let image = btrfs_of_32_mib();
    let node = nodes(&image)[0];
    let put = |at: u64, bytes: &[u8]| image.file.as_file().write_all_at(bytes, at).unwrap();
    let mut uuid = [0; 16];
    image.file.as_file().read_exact_at(&mut uuid, SUPERBLOCK_AT + 32).unwrap();
    put(SUPERBLOCK_AT + 32, &[7; 16]);
    assert!(!Guest::of(&image).is_known(node, |_| {}, NODE_BYTES));
    let mut features = [0; 2];
    image.file.as_file().read_exact_at(&mut features, SUPERBLOCK_AT + 188).unwrap();
    put(SUPERBLOCK_AT + 189, &[features[1] | 4]);
    put(SUPERBLOCK_AT + 571, &uuid);
    assert!(Guest::of(&image).is_known(node, |_| {}, NODE_BYTES));
}

/// A file system made on a disk that was empty, or held something else.
#[test]
fn a_file_system_is_noticed_when_it_is_made() {
    let made = btrfs_of_32_mib();
    let mut guest = Guest::of(&Disk::new(32 * MIB));
    let mut superblock = vec![0; 4096];
    made.file.as_file().read_exact_at(&mut superblock, SUPERBLOCK_AT).unwrap();
    guest.disk.write(Sector::new(SUPERBLOCK_AT / 512), &mut superblock).unwrap();
    wait_until("btrfs", || kinds(&guest.classes.layout()) == ["btrfs"]);
    guest.disk.write(Sector::new(SUPERBLOCK_AT / 512), &mut [0; 4096]).unwrap();
    guest.disk.write(Sector::new(0), &mut [0; 4096]).unwrap();
    wait_until("nothing", || guest.classes.layout().found().is_empty());
}
