//! A request to a cluster that another one is changing, and a table that is evicted while it is
//! read: concurrent steps of two threads, run in sequence.

use flowstone_block::{Completion, Op};
use flowstone_fileio::{BlockingFile, FileOffset};
use flowstone_sim::SimDisk;

use super::super::Qcow2Image;
use super::super::shape::{GuestCluster, HostCluster};
use super::super::slow_path::TableRead;
use super::fixture::{
    Guest, assert_clean, contents, extent, new_disk, new_overlay, open, open_on, raw,
};

const CLUSTER: u64 = 8;
const CLUSTERS: u64 = 16;
const COPIED: u8 = 7;

/// Locks a cluster like the slow path, while data of the backing file is copied.
fn begin_to_copy(image: &Qcow2Image) -> HostCluster {
    let mut meta = image.core.meta();
    let host = HostCluster(meta.space.take(1).unwrap().start);
    meta.lock_exclusive(GuestCluster(0));
    host
}

/// Ends the copy, so that the map names it.
fn end_copy(image: &Qcow2Image, host: HostCluster) {
    let mut file = BlockingFile::new(&*image.core.file).unwrap();
    let offset = FileOffset::new(image.core.shape.offset(host));
    file.write(offset, &mut [COPIED; CLUSTER as usize * 512]).unwrap();
    let mut meta = image.core.meta();
    meta.name(GuestCluster(0), host);
    meta.release(GuestCluster(0));
    drop(meta);
    image.core.tell_changed();
}

/// Waits until a thread waits for the lock, or the request has completed.
fn until_it_waits(image: &Qcow2Image, guest: &mut Guest) -> Option<Completion> {
    while image.core.waiting.load(std::sync::atomic::Ordering::SeqCst) == 0 {
        if let Some(completion) = guest.poll() {
            return Some(completion);
        }
        std::thread::yield_now();
    }
    guest.poll()
}

/// A request that ignored the lock was lost: the copy overwrote it.
#[test]
fn what_comes_while_a_cluster_is_copied_waits_for_the_copy() {
    let part = extent(2, 1);
    let whole = extent(0, CLUSTER);
    let ops = [
        Op::Write(whole),
        Op::Write(part),
        Op::Discard(whole),
        Op::Discard(part),
        Op::WriteZeroes { extent: whole, unmap: false },
        Op::WriteZeroes { extent: part, unmap: false },
    ];
    for op in ops {
        let base = SimDisk::from_bytes(&[1; (CLUSTERS * CLUSTER * 512) as usize]);
        let disk = new_overlay(CLUSTERS * CLUSTER, CLUSTER * 512);
        let image = open_on(&disk, Some(raw(&base)));
        let mut guest = Guest::new(&image);
        // Makes room.
        guest.run(Op::Write(extent(CLUSTER, CLUSTER)), 5).unwrap();
        let host = begin_to_copy(&image);
        guest.submit(op, 9);
        let early = until_it_waits(&image, &mut guest);
        assert!(early.is_none(), "{op:?} did not wait");
        end_copy(&image, host);
        guest.next().outcome.unwrap();
        let held = contents(&image);
        let stamp = if matches!(op, Op::Write(_)) { 9 } else { 0 };
        for sector in 0..CLUSTER {
            let is_in = (part.start().get() == sector) || op.bytes() > 512;
            let expected = if is_in { stamp } else { COPIED };
            assert_eq!(held[sector as usize * 512], expected, "{op:?}, sector {sector}");
        }
        drop((guest, image));
        assert_clean(&disk);
    }
}

/// One thread has read a table; before it inserts it into the map, another one does so, changes it,
/// and evicts it after a commit has written it. The first thread's copy was inserted: flushed
/// writes were gone.
#[test]
fn a_table_that_was_thrown_out_while_it_was_read_is_read_again() {
    const TABLE_SECTORS: u64 = 64;
    let disk = new_disk(4 * TABLE_SECTORS, 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    for table in 0..4 {
        guest.run(Op::Write(extent(table * TABLE_SECTORS, 1)), 1).unwrap();
    }
    drop((guest, image));
    let image = open(&disk);
    image.core.meta().map.memory_bytes = 512;
    let mut guest = Guest::new(&image);
    let read = |guest: &mut Guest, sector| {
        let tag = guest.submit(Op::Read(extent(sector, 1)), 0);
        guest.next().outcome.unwrap();
        guest.data(tag)[0]
    };
    let evict_first = |guest: &mut Guest| {
        (1..100)
            .find_map(|step| {
                assert_eq!(read(guest, (1 + step % 3) * TABLE_SECTORS), 1);
                image.core.meta().map.get(GuestCluster(1)).err()
            })
            .expect("it is thrown out")
    };
    let missing = evict_first(&mut guest);
    let mut file = BlockingFile::new(&*image.core.file).unwrap();
    let slow = TableRead::begin(&image.core, missing);
    let entries = slow.read(&image.core, &mut file).unwrap();
    guest.run(Op::Write(extent(1, 1)), 2).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    evict_first(&mut guest);
    slow.finish(&image.core, entries).unwrap();
    assert_eq!(read(&mut guest, 1), 2);
    drop((guest, image));
    assert_clean(&disk);
    assert_eq!(contents(&open(&disk))[512], 2);
}
