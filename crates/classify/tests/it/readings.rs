//! When layouts are read again, and the handling of failed readings.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Channel, Class, Extent, Geometry, Layer, Op, QueueContext, Sector, SectorCount,
};
use flowstone_classify::{Classify, DiskClasses, Rule};
use flowstone_testkit::truth::run;
use flowstone_testkit::wait_until;

use crate::disk::{Disk, MIB, make};
use crate::forged::{mbr_entry, put, put_gpt};
use crate::slow::{OfGuest, Slow, ext4_of_32_mib, slow};

fn is_ext4(classes: &DiskClasses) -> bool {
    classes.layout().found().iter().any(|it| it.kind == "ext4")
}

/// Waits until no reading is wanted: two of them have found the same definers. Returns their
/// number.
fn settled(classes: &DiskClasses) -> u64 {
    wait_until("the layout, twice", || is_ext4(classes) && classes.readings() >= 2);
    // A needless reading would begin a second later.
    std::thread::sleep(Duration::from_millis(1500));
    classes.readings()
}

/// Zeroes the superblock.
fn wipe(disk: &mut BlockingDisk) {
    let _ = disk.write(Sector::new(2), &mut [0; 1024]);
}

/// A write to the superblock during a reading causes another one, which does not begin before the
/// write has completed.
#[test]
fn what_is_written_during_a_reading_is_read() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let before = settled(&classes);
    assert_eq!(before, 2, "once more, since what defines the layout has changed");
    // Not before it has completed.
    let mut superblock = vec![0; 1024];
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    guest.read(Sector::new(2), &mut superblock).unwrap();
    let reads = control.reads.load(Relaxed);
    control.writes_held.store(true, Relaxed);
    std::thread::scope(|scope| {
        let (classify, control, classes) = (&classify, &control, &classes);
        let held = scope.spawn(move || {
            let mut guest = BlockingDisk::new(&OfGuest(classify, 1)).unwrap();
            guest.write(Sector::new(2), &mut superblock).unwrap();
        });
        std::thread::sleep(Duration::from_millis(1500));
        let meanwhile = classes.readings();
        control.read_ms.store(200, Relaxed);
        control.writes_held.store(false, Relaxed);
        held.join().unwrap();
        assert_eq!(meanwhile, before, "a write that has not completed");
    });
    wait_until("a reading", || control.reads.load(Relaxed) > reads + 1);
    // The block with the superblock has been read.
    assert!(is_ext4(&classes));
    wipe(&mut guest);
    control.read_ms.store(0, Relaxed);
    wait_until("another reading", || !is_ext4(&classes));
}

#[test]
fn whatever_changes_a_superblock_is_noticed() {
    let check = |nth| {
        let (disk, control) = slow(&ext4_of_32_mib(""));
        let classify = Classify::new(disk, 3);
        let classes = classify.classes();
        settled(&classes);
        let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
        let of_superblock = Extent::new(Sector::new(2), SectorCount::new(2)).unwrap();
        match nth {
            0 => wipe(&mut guest),
            1 => guest.run(Op::Discard(of_superblock)).unwrap(),
            2 => guest.run(Op::WriteZeroes { extent: of_superblock, unmap: false }).unwrap(),
            _ => {
                control.writes_fail.store(true, Relaxed);
                wipe(&mut guest);
            }
        }
        wait_until("another reading", || !is_ext4(&classes));
    };
    std::thread::scope(|scope| (0..4).for_each(|nth| drop(scope.spawn(move || check(nth)))));
}

/// A write is submitted before the first layout is known, and completes long after.
#[test]
fn a_write_is_judged_by_the_layout_of_its_end() {
    let image = Disk::new(32 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    put_gpt(&image, 512, 0, &[(2048, 42 * 1024 - 1)]);
    let mut superblock = vec![0; 1024];
    image.file.as_file().read_exact_at(&mut superblock, MIB + 1024).unwrap();
    let (disk, control) = slow(&image);
    control.read_ms.store(500, Relaxed);
    control.writes_held.store(true, Relaxed);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    std::thread::scope(|scope| {
        let classify = &classify;
        let guest = scope.spawn(move || {
            let mut guest = BlockingDisk::new(&OfGuest(classify, 0)).unwrap();
            guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
        });
        std::thread::sleep(Duration::from_millis(200));
        control.read_ms.store(0, Relaxed);
        let before = settled(&classes);
        control.writes_held.store(false, Relaxed);
        guest.join().unwrap();
        wait_until("another reading", || classes.readings() > before);
    });
}

/// A guest that keeps writing its superblock makes it be read once a second.
#[test]
fn readings_are_a_second_apart() {
    let (disk, _) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    wait_until("the layout", || is_ext4(&classes));
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2), &mut superblock).unwrap();
    let (begin, before) = (Instant::now(), classes.readings());
    wait_until("four more", || {
        guest.write(Sector::new(2), &mut superblock).unwrap();
        classes.readings() >= before + 4
    });
    // The first reading may be due at once.
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
}

/// A reading of many pieces ends with its current request.
#[test]
fn a_disk_goes_away_during_a_reading() {
    let image = Disk::new(32 * MIB);
    make("mkfs.ext3", "-q -F -b 1024 -J size=4", image.file.path());
    // On a busy machine pieces may be read before it goes away.
    wait_until("it goes away with at most one more piece", || {
        let (disk, control) = slow(&image);
        control.read_ms.store(300, Relaxed);
        let weak = Arc::downgrade(&disk);
        let classify = Classify::new(disk, 3);
        wait_until("a reading", || control.reads.load(Relaxed) > 1);
        let begun = control.reads.load(Relaxed);
        drop(classify);
        assert!(weak.upgrade().is_none(), "nobody holds the image any more");
        control.reads.load(Relaxed) - begun <= 1
    });
}

/// Between two readings the thread waits for a second, but not when the disk is closed.
#[test]
fn a_disk_goes_away_between_two_readings() {
    // On a busy machine one that does not wait may be late.
    wait_until("it goes away before the second is over", || {
        let (disk, control) = slow(&ext4_of_32_mib(""));
        let weak = Arc::downgrade(&disk);
        let classify = Classify::new(disk, 3);
        let classes = classify.classes();
        wait_until("the layout", || is_ext4(&classes));
        drop(classes);
        std::thread::sleep(Duration::from_millis(50));
        let begin = Instant::now();
        drop(classify);
        assert!(weak.upgrade().is_none());
        assert!(control.reads.load(Relaxed) > 0);
        begin.elapsed() < Duration::from_millis(500)
    });
}

/// The daemon's own requests come from no guest.
#[test]
fn only_requests_of_guests_are_counted() {
    let (disk, _) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let written = || Class::ALL.map(|it| classes.of_class(it).writes).iter().sum::<u64>();
    let mut own = BlockingDisk::new(&classify).unwrap();
    own.write(Sector::new(4096), &mut [0; 4096]).unwrap();
    assert_eq!(written(), 0);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    guest.write(Sector::new(4096), &mut [0; 4096]).unwrap();
    assert_eq!(written(), 1);
}

/// An idle queue learns of the journals that others have detected.
#[test]
fn a_pattern_is_known_to_all_queues() {
    let (disk, _) = slow(&Disk::new(32 * MIB));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    let mut first = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut second = BlockingDisk::new(&OfGuest(&classify, 1)).unwrap();
    second.read(Sector::new(20_000), &mut [0; 4096]).unwrap();
    let mut at = 10_000;
    for _ in 0..20 {
        for bytes in [12_288, 4096] {
            first.write(Sector::new(at), &mut vec![0; bytes]).unwrap();
            first.run(Op::Flush).unwrap();
            at += bytes as u64 / 512;
        }
    }
    assert!(classes.of_rule(Rule::Pattern) > 10);
    second.read(Sector::new(10_200), &mut [0; 4096]).unwrap();
    assert_eq!(classes.of_class(Class::Journal).reads, 1);
}

/// The ring or the thread of the first reading was refused, and nothing was known until the guest
/// wrote its boot record.
#[test]
fn a_reading_that_could_not_begin_is_done_again() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    control.channels_refused.store(1, Relaxed);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    wait_until("the layout", || is_ext4(&classes));
}

/// After three readings with errors the known layout was dropped, with the definers that cause the
/// next reading.
#[test]
fn an_outage_of_some_seconds_does_not_cost_the_layout_for_good() {
    let image = Disk::new(32 * MIB);
    run("sfdisk", &["-q", image.path()], "label: gpt\nstart=2048, size=40960\n");
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    let (disk, control) = slow(&image);
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    settled(&classes);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2048 + 2), &mut superblock).unwrap();
    control.reads_fail.store(true, Relaxed);
    let before = classes.readings();
    guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
    wait_until("readings that fail", || classes.readings() > before + 3);
    control.reads_fail.store(false, Relaxed);
    // The guest mounts the file system again.
    guest.write(Sector::new(2048 + 2), &mut superblock).unwrap();
    wait_until("the layout", || is_ext4(&classes));
}

/// With blocks of 4 KiB (a disk that requires them), a boot record counts these.
#[test]
fn a_boot_record_of_a_disk_with_blocks_of_4_kib() {
    struct Large(Arc<Slow>);
    impl Layer for Large {
        fn geometry(&self) -> Geometry {
            Geometry { logical_block_bytes: 4096, ..self.0.geometry() }
        }
        fn channel(&self, context: &QueueContext) -> io::Result<Box<dyn Channel>> {
            self.0.channel(context)
        }
    }
    let image = Disk::new(32 * MIB);
    let inner = Disk::new(20 * MIB);
    make("mkfs.ext4", "-q -F", inner.file.path());
    image.insert(MIB, &inner);
    put(&image, 446, &mbr_entry(0, 0x83, 256, 20 * 256));
    put(&image, 510, &[0x55, 0xAA]);
    let classify = Classify::new(Arc::new(Large(slow(&image).0)), 3);
    let classes = classify.classes();
    wait_until("the layout", || is_ext4(&classes));
}

/// A reading met an error, and the whole layout was dropped, until the boot record was written
/// again.
#[test]
fn a_passing_error_does_not_cost_the_layout() {
    let (disk, control) = slow(&ext4_of_32_mib(""));
    let classify = Classify::new(disk, 3);
    let classes = classify.classes();
    settled(&classes);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    let mut superblock = vec![0; 1024];
    guest.read(Sector::new(2), &mut superblock).unwrap();
    control.reads_fail.store(true, Relaxed);
    let before = classes.readings();
    guest.write(Sector::new(2), &mut superblock).unwrap();
    wait_until("a reading that fails", || classes.readings() > before);
    assert!(is_ext4(&classes), "it is as it was");
    control.reads_fail.store(false, Relaxed);
    let before = classes.readings();
    wait_until("a reading without another write", || classes.readings() > before);
    assert!(is_ext4(&classes));
}

/// The pace is called for all reads, and told that no guest caused the first reading.
#[test]
fn a_reading_keeps_to_its_pace_and_ends_in_the_midst_of_a_rest() {
    let (told, charged) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let rests = Arc::<AtomicBool>::default();
    let pace = {
        let (told, charged, rests) = (told.clone(), charged.clone(), rests.clone());
        Arc::new(move |bytes, is_charged| {
            told.fetch_add(bytes, Relaxed);
            charged.fetch_or(is_charged, Relaxed);
            Duration::from_secs(if rests.load(Relaxed) { 3600 } else { 0 })
        })
    };
    let (disk, control) = slow(&ext4_of_32_mib(""));
    let classify = Classify::paced(disk, 3, pace);
    let classes = classify.classes();
    wait_until("the layout", || is_ext4(&classes));
    assert!(told.load(Relaxed) >= 4096 * control.reads.load(Relaxed).min(2));
    wait_until("a reading because of what has been read", || charged.load(Relaxed));
    rests.store(true, Relaxed);
    let before = told.load(Relaxed);
    let mut guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
    wait_until("a rest", || {
        wipe(&mut guest);
        told.load(Relaxed) > before
    });
    // Waits for its thread, which is resting for an hour.
    drop((guest, classes, classify));
}
