//! Hosts that fail, and hosts that are full.

use flowstone_block::{Errno, Layer, Op, QueueContext, QueueDepth};
use flowstone_fileio::FileIo;
use flowstone_sim::{Call, Fault, Landed};

use super::fixture::{
    Guest, assert_clean, checked, contents, extent, new_disk, open, open_read_only,
};

const CLUSTER: u64 = 8;

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    for in_place in [false, true] {
        let disk = new_disk(64 * CLUSTER, CLUSTER * 512);
        let image = open(&disk);
        let mut guest = Guest::new(&image);
        let mut other = Guest::new(&image);
        guest.run(Op::Write(extent(0, CLUSTER)), 1).unwrap();
        guest.run(Op::Flush, 0).unwrap();
        disk.inject(Fault::fail(Errno::IO).on(Call::Datasync));
        let at = if in_place { 0 } else { 8 * CLUSTER };
        guest.run(Op::Write(extent(at, CLUSTER)), 2).unwrap();
        assert_eq!(guest.run(Op::Flush, 0), Err(Errno::IO));
        assert_eq!(
            guest.run(Op::Flush, 0),
            Err(Errno::IO),
            "the next sync succeeds, and says nothing"
        );
        assert_eq!(other.run(Op::Flush, 0), Err(Errno::IO), "nor for another queue");
        guest.run(Op::Write(extent(at, 1)), 3).unwrap();
        guest.run(Op::Read(extent(at, 1)), 0).unwrap();
        drop((guest, other, image));
        assert_eq!(checked(&disk, false).errors, Vec::<String>::new());
    }
}

#[test]
fn a_full_host_loses_nothing_and_recovers() {
    let disk = new_disk(256 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8 * CLUSTER)), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    disk.set_capacity(Some(disk.allocated_bytes().unwrap()));
    for step in 0..20 {
        let at = (10 + step) * CLUSTER;
        assert_eq!(guest.run(Op::Write(extent(at, CLUSTER)), 9), Err(Errno::NOSPC));
    }
    guest.run(Op::Write(extent(0, CLUSTER)), 2).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    disk.set_capacity(None);
    guest.run(Op::Write(extent(10 * CLUSTER, CLUSTER)), 3).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    drop(guest);
    let held = contents(&image);
    drop(image);
    assert_clean(&disk);
    let cluster = CLUSTER as usize * 512;
    assert!(held[..cluster].iter().all(|byte| *byte == 2));
    assert!(held[10 * cluster..11 * cluster].iter().all(|byte| *byte == 3));
    assert!(held[11 * cluster..].iter().all(|byte| *byte == 0));
    assert!(contents(&open_read_only(&disk).unwrap()) == held);
}

/// The commit that would have freed discarded clusters had found no room for a table, and no flush
/// asked for another.
#[test]
fn a_commit_that_found_no_room_is_tried_again_without_being_asked() {
    let disk = new_disk(256 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    let all = extent(0, 64 * CLUSTER);
    guest.run(Op::Write(all), 1).unwrap();
    let full = disk.allocated_bytes().unwrap();
    disk.set_capacity(Some(full));
    guest.run(Op::Discard(all), 0).unwrap();
    assert_eq!(guest.run(Op::Flush, 0), Err(Errno::NOSPC));
    disk.set_capacity(None);
    let given_back = || disk.allocated_bytes().unwrap() <= full / 2;
    flowstone_testkit::wait_until("space is given back", given_back);
    drop((guest, image));
    assert_clean(&disk);
}

#[test]
fn metadata_that_could_not_be_written_is_written_later() {
    let disk = new_disk(256 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 200 * CLUSTER)), 1).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    for step in 0..12u64 {
        guest.run(Op::Discard(extent(step * CLUSTER, CLUSTER)), 0).unwrap();
        guest.run(Op::Write(extent((201 + step) * CLUSTER, CLUSTER)), 4).unwrap();
        let fault = Fault::fail(Errno::NOSPC).landed(Landed::nth(step / 4 + step));
        disk.inject(fault.on(Call::Write).after(step % 4));
        let flushed = guest.run(Op::Flush, 0);
        disk.clear_faults();
        assert!(matches!(flushed, Ok(()) | Err(Errno::NOSPC)), "{flushed:?}");
        guest.run(Op::Flush, 0).unwrap();
    }
    drop(guest);
    let held = contents(&image);
    drop(image);
    assert_clean(&disk);
    assert!(contents(&open_read_only(&disk).unwrap()) == held);
}

#[test]
fn a_channel_that_is_dropped_waits_for_what_it_has_begun() {
    let disk = new_disk(64 * CLUSTER, CLUSTER * 512);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    for cluster in 0..16 {
        guest.submit(Op::Write(extent(cluster * CLUSTER, 3)), 5);
        guest.submit(Op::Discard(extent((20 + cluster) * CLUSTER, 3)), 0);
    }
    drop(guest);
    drop(image.channel(&QueueContext::alone(QueueDepth(1)).unwrap()).unwrap());
    drop(image);
    assert_clean(&disk);
}
