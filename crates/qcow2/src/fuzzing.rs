//! Entry points of the fuzz target: small images that have been tampered with.

use std::path::Path;
use std::sync::OnceLock;

use flowstone_block::{BlockingDisk, Extent, Op, Sector, SectorCount};
use flowstone_fileio::Access;
use flowstone_image::{CheckOptions, use_it};
use flowstone_sim::SimDisk;

use super::{Opening, Qcow2Image, Qcow2Options, check, create};

/// Clusters of the small disks.
const CLUSTERS: u64 = 150;

/// Bytes to put into an image.
#[derive(Clone, Debug)]
pub struct Patch {
    /// Offset, modulo the size of the file.
    pub at: u32,
    /// Bytes to write; at most 64 are used.
    pub bytes: Vec<u8>,
}

/// A small image with data, zeroes and freed clusters.
pub fn small_image(cluster_bits: u32) -> &'static [u8] {
    static SMALL: OnceLock<Vec<u8>> = OnceLock::new();
    static LARGER: OnceLock<Vec<u8>> = OnceLock::new();
    match cluster_bits {
        9 => SMALL.get_or_init(|| make(9)),
        _ => LARGER.get_or_init(|| make(12)),
    }
}

fn make(cluster_bits: u32) -> Vec<u8> {
    let disk = SimDisk::new(0);
    let cluster_sectors = 1 << (cluster_bits - 9);
    let options =
        Qcow2Options { cluster_bytes: Some(1 << cluster_bits), ..Qcow2Options::default() };
    let capacity = SectorCount::new(CLUSTERS * cluster_sectors);
    create("small", &disk, capacity, &options).expect("sound options");
    let image = open(&disk, Access::Write).expect("a new image opens");
    let mut guest = BlockingDisk::new(&image).expect("a channel");
    for cluster in (0..CLUSTERS).filter(|cluster| cluster % 3 != 0) {
        let mut data = vec![cluster as u8; 512 * cluster_sectors as usize];
        guest.write(Sector::new(cluster * cluster_sectors), &mut data).expect("there is room");
    }
    guest.run(Op::Flush).expect("the simulated disk does not fail");
    let place =
        Extent::new(Sector::new(10 * cluster_sectors), SectorCount::new(20 * cluster_sectors));
    guest.run(Op::Discard(place.expect("not empty"))).expect("there is room");
    drop(guest);
    drop(image);
    disk.to_bytes()
}

fn open(disk: &SimDisk, access: Access) -> flowstone_block::Result<Qcow2Image> {
    let file = Box::new(disk.clone());
    Qcow2Image::open(Path::new("small"), file, Opening::to(access))
}

/// Opens, uses, checks and repairs a tampered image. Whatever it holds: no panic, no endless loop,
/// and a repair leaves nothing for a second repair to do.
pub fn survive(cluster_bits: u32, patches: &[Patch], length: Option<usize>) {
    let mut bytes = small_image(cluster_bits).to_vec();
    for patch in patches {
        let at = patch.at as usize % bytes.len();
        let count = patch.bytes.len().min(64).min(bytes.len() - at);
        bytes[at..at + count].copy_from_slice(&patch.bytes[..count]);
    }
    if let Some(length) = length {
        bytes.truncate(length / 512 * 512);
    }
    let checked = |disk: &SimDisk, repair| {
        let options = CheckOptions { data: false, repair };
        check("small", disk, None, options, &mut |_, _| {})
    };
    let disk = SimDisk::from_bytes(&bytes);
    let found = checked(&disk, false);
    if checked(&disk, true).is_ok_and(|report| report.error_count == 0) {
        let again = checked(&disk, true).expect("what has been repaired can be repaired again");
        assert!(again.repairs.is_empty() && again.leaked_bytes == 0, "{again:?}");
    }
    let disk = SimDisk::from_bytes(&bytes);
    if let Ok(image) = open(&disk, Access::Read) {
        use_it(&image, 900);
    }
    if let Ok(image) = open(&disk, Access::Write) {
        use_it(&image, 900);
        drop(image);
        // An image without errors still has none.
        if found.is_ok_and(|report| report.error_count == 0 && report.leaked_bytes == 0) {
            let left = checked(&disk, false).expect("it could be checked before");
            assert_eq!((left.errors, left.leaked_bytes), (vec![], 0));
        }
    }
}
