//! A device with sectors of 4 KiB, which refuses smaller requests: `--direct on`.

use std::path::Path;

use fastrand::Rng;
use flowstone_block::{Errno, NextLook, Op, SectorCount};
use flowstone_fileio::{Access, FileChannel, FileCompletion, FileOp, FileRequest};
use flowstone_image::{CheckOptions, Image};
use flowstone_sim::{SimDisk, Wrapped};

use super::super::check;
use super::super::{Opening, Qcow2Image};
use super::basic::any_change;
use super::fixture::{Guest, assert_clean, contents, extent, new_disk, number};

const SECTOR: u64 = 4096;

/// Makes a disk that is read and written in sectors of 4 KiB.
fn large_sectors(disk: &SimDisk) -> Wrapped {
    let mut disk = Wrapped::new(disk, |channel| Strict { channel, refused: Vec::new() });
    disk.block_bytes = SECTOR as u32;
    disk
}

struct Strict {
    channel: Box<dyn FileChannel>,
    refused: Vec<FileCompletion>,
}

impl FileChannel for Strict {
    fn submit(&mut self, request: FileRequest) {
        let is_whole = match request.op {
            FileOp::Read { offset, bytes } | FileOp::Write { offset, bytes, .. } => {
                offset.get().is_multiple_of(SECTOR) && bytes.is_multiple_of(SECTOR)
            }
            _ => true,
        };
        if is_whole {
            self.channel.submit(request);
        } else {
            let outcome = Err(Errno::INVAL);
            self.refused.push(FileCompletion::new(request.tag, outcome));
        }
    }

    fn kick(&mut self) {
        self.channel.kick();
    }

    fn reap(&mut self, done: &mut Vec<FileCompletion>) {
        done.append(&mut self.refused);
        self.channel.reap(done);
    }

    fn next_look(&mut self) -> NextLook {
        NextLook::now_if(!self.refused.is_empty()).min(self.channel.next_look())
    }
}

fn open(disk: &SimDisk, access: Access) -> flowstone_block::Result<Qcow2Image> {
    Qcow2Image::open(Path::new("image"), Box::new(large_sectors(disk)), Opening::to(access))
}

/// Header and tables were read and written in sectors of 512 bytes: a valid image was refused.
#[test]
fn an_image_is_served_from_sectors_of_4_kib() {
    for (cluster_bits, sectors) in [(12, 6 << 13), (16, 2048), (21, 3 << 12)] {
        let mut random = Rng::with_seed(cluster_bits);
        let disk = new_disk(sectors, 1 << cluster_bits);
        let mut model = vec![0; sectors as usize / 8 * 512];
        for round in 0..3 {
            let image = open(&disk, Access::Write).unwrap();
            let mut guest = Guest::new(&image);
            for step in 0..60u8 {
                let op = eight_times(any_change(&mut random, &mut model, step + 1));
                guest.run(op, step + 1).unwrap();
                if random.u8(..10) == 0 {
                    guest.run(Op::Flush, 0).unwrap();
                }
            }
            let expected: Vec<u8> = model.chunks(512).flat_map(|sector| sector.repeat(8)).collect();
            assert!(contents(&image) == expected, "2^{cluster_bits}, round {round}");
            drop((guest, image));
            assert_clean(&disk);
            let image = open(&disk, Access::Read).unwrap();
            assert!(contents(&image) == expected, "2^{cluster_bits}, round {round}");
        }
    }
}

/// Converts an operation in units of 512 bytes to units of 4 KiB.
fn eight_times(op: Op) -> Op {
    let larger =
        |place: flowstone_block::Extent| extent(place.start().get() * 8, place.count().get() * 8);
    match op {
        Op::Write(place) => Op::Write(larger(place)),
        Op::Discard(place) => Op::Discard(larger(place)),
        Op::WriteZeroes { extent, unmap } => Op::WriteZeroes { extent: larger(extent), unmap },
        Op::Read(_) | Op::Flush => op,
    }
}

#[test]
fn an_image_on_sectors_of_4_kib_is_resized_put_in_order_and_repaired() {
    let disk = new_disk(2048, 4096);
    let image = open(&disk, Access::Write).unwrap();
    let mut guest = Guest::new(&image);
    for cluster in [9, 3, 70, 200, 1] {
        guest.run(Op::Write(extent(cluster * 8, 8)), cluster as u8).unwrap();
    }
    drop(guest);
    // The L1 table becomes longer than a sector.
    image.resize(SectorCount::new(3 << 21)).unwrap();
    image.compact(&mut |_, _| {}).unwrap();
    drop(image);
    assert_clean(&disk);
    // A wrong COPIED flag in the second sector of a table in use.
    let l1 = number(&disk, 40);
    let entry = number(&disk, l1);
    disk.write_at(l1, &(entry & !(1 << 63)).to_be_bytes());
    let options = CheckOptions { data: false, repair: true };
    let file = large_sectors(&disk);
    let report = check("image", &file, None, options, &mut |_, _| {}).unwrap();
    assert_eq!((report.errors, report.repairs.len()), (vec![], 1));
    let image = open(&disk, Access::Read).unwrap();
    let mut guest = Guest::new(&image);
    for cluster in [9, 3, 70, 200, 1] {
        let tag = guest.submit(Op::Read(extent(cluster * 8, 8)), 0);
        guest.next().outcome.unwrap();
        assert!(guest.data(tag).iter().all(|byte| u64::from(*byte) == cluster));
    }
}

#[test]
fn clusters_that_are_smaller_than_a_sector_are_refused() {
    let disk = new_disk(2048, 2048);
    let refusal = open(&disk, Access::Write).err().unwrap().to_string();
    assert!(refusal.contains("smaller than the blocks of the device"), "{refusal}");
}
