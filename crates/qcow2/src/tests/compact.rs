//! Tests of `compact`: data ends up in the order of the disk, whatever the host does meanwhile.

use fastrand::Rng;
use flowstone_block::{Errno, Layer, Op};
use flowstone_fileio::{BlockingFile, FileIo};
use flowstone_image::Image;
use flowstone_sim::{Call, Fate, Fault, Landed, Schedule, SimDisk};

use super::super::Qcow2Image;
use super::super::slow_path::look;
use super::fixture::{
    Guest, assert_clean, checked, contents, extent, new_disk, new_overlay, open, open_on,
    open_read_only, raw,
};
use super::history_model::{stamped, stamps_of};

/// Writes most of the clusters of a disk in any order, and discards some of them again.
pub fn disorder(image: &dyn Layer, cluster_sectors: u64, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let mut guest = Guest::new(image);
    let sectors = image.geometry().capacity.get();
    let mut clusters: Vec<u64> = (0..sectors / cluster_sectors).collect();
    random.shuffle(&mut clusters);
    clusters.truncate(clusters.len() * 4 / 5);
    for cluster in &clusters {
        let place = extent(cluster * cluster_sectors, cluster_sectors);
        // Some are all zero, which is not known until they are read.
        let stamp = if random.u8(..10) == 0 { 0 } else { 7 };
        let data = stamped(place.start().get(), place.count().get(), stamp);
        guest.submit_data(Op::Write(place), &data, false);
        guest.next().outcome.unwrap();
        if random.u8(..50) == 0 {
            guest.run(Op::Flush, 0).unwrap();
        }
    }
    for cluster in &clusters[..clusters.len() / 6] {
        let place = extent(cluster * cluster_sectors, cluster_sectors);
        guest.run(Op::Discard(place), 0).unwrap();
    }
}

/// A disk without history that holds an image with scattered clusters.
fn disordered(clusters: u64, cluster_bytes: u64, seed: u64) -> SimDisk {
    let cluster_sectors = cluster_bytes / 512;
    let disk = new_disk(clusters * cluster_sectors, cluster_bytes);
    disorder(&open(&disk), cluster_sectors, seed);
    assert_clean(&disk);
    SimDisk::from_bytes(&disk.to_bytes())
}

fn compact(image: &Qcow2Image) -> flowstone_block::Result<()> {
    image.compact(&mut |_, _| {})
}

fn runs(disk: &SimDisk) -> u64 {
    open_read_only(disk).unwrap().layout().unwrap().data_runs
}

/// Returns the offsets of the disk's clusters in the file, in the order of the disk.
fn places(disk: &SimDisk) -> Vec<u64> {
    let image = open_read_only(disk).unwrap();
    let shape = image.core.shape;
    let mut file = BlockingFile::new(disk).unwrap();
    let clusters = shape.clusters(image.core.capacity().bytes());
    (0..clusters)
        .filter_map(|cluster| {
            let position = cluster * shape.cluster_bytes();
            let (meta, part) = look(&image.core, &mut file, |meta| meta.find(position, 1)).unwrap();
            drop(meta);
            match part.source {
                super::super::meta::Source::File { offset, .. } => Some(offset),
                _ => None,
            }
        })
        .collect()
}

#[test]
fn data_is_in_order_afterwards_and_stays_so() {
    for (clusters, cluster_bytes) in [(1000, 512), (400, 4096), (100, 65_536), (40, 2 << 20)] {
        let disk = disordered(clusters, cluster_bytes, cluster_bytes);
        let before = (contents(&open_read_only(&disk).unwrap()), runs(&disk));
        let (allocated, size) = (disk.allocated_bytes().unwrap(), disk.size().unwrap());
        let image = open(&disk);
        compact(&image).unwrap();
        assert!(contents(&image) == before.0, "{cluster_bytes}");
        drop(image);
        assert_clean(&disk);
        assert!(contents(&open_read_only(&disk).unwrap()) == before.0, "{cluster_bytes}");
        let places = places(&disk);
        assert!(places.is_sorted(), "{cluster_bytes}: {places:?}");
        assert!(runs(&disk) < before.1 / 2, "{cluster_bytes}: {} of {}", runs(&disk), before.1);
        assert!(disk.allocated_bytes().unwrap() <= allocated, "{cluster_bytes}");
        assert!(disk.size().unwrap() <= size, "{cluster_bytes}");

        let after = disk.to_bytes();
        disk.inject(Fault::fail(Errno::IO).on(Call::Write).always());
        let image = open(&disk);
        compact(&image).unwrap();
        drop(image);
        assert!(disk.to_bytes() == after, "{cluster_bytes}: nothing is left to do");
        assert_eq!(disk.faults_struck(), 0);
    }
}

#[test]
fn compact_survives_every_power_cut() {
    for (clusters, cluster_bytes, seed) in [(300, 512, 1), (60, 4096, 2), (60, 4096, 3)] {
        let disk = disordered(clusters, cluster_bytes, seed);
        let before = stamps_of(&contents(&open_read_only(&disk).unwrap()));
        disk.set_schedule(Schedule::Shuffled { seed });
        let image = open(&disk);
        compact(&image).unwrap();
        drop(image);
        assert_clean(&disk);
        for (index, moment) in disk.crash_points().enumerate() {
            for fate in [Fate::everything(), Fate::seeded(seed * 5000 + index as u64)] {
                let crashed = disk.crash_at(moment, &mut fate.clone());
                let image = open_read_only(&crashed).unwrap();
                let found = stamps_of(&contents(&image));
                assert!(found == before, "clusters of {cluster_bytes}, {fate:?} at {moment:?}");
                assert_eq!(checked(&crashed, false).errors, Vec::<String>::new(), "{moment:?}");
            }
            if index % 17 == 0 {
                let crashed = disk.crash_at(moment, &mut Fate::seeded(index as u64));
                let again = SimDisk::from_bytes(&crashed.to_bytes());
                let image = open(&again);
                compact(&image).unwrap();
                drop(image);
                // Clusters leaked by the crash are freed, too.
                assert_clean(&again);
                assert!(stamps_of(&contents(&open_read_only(&again).unwrap())) == before);
                assert!(places(&again).is_sorted(), "{moment:?}");
            }
        }
    }
}

#[test]
fn a_full_host_stops_it_and_loses_nothing() {
    for more in [0, 1, 3, 10, 30, 100] {
        let disk = disordered(600, 4096, more);
        let before = contents(&open_read_only(&disk).unwrap());
        disk.set_capacity(Some(disk.allocated_bytes().unwrap() + more * 4096));
        let image = open(&disk);
        let stopped = compact(&image);
        if let Err(error) = &stopped {
            let said = error.to_string();
            assert!(said.contains("free space on the host"), "{said}");
        }
        assert!(stopped.is_err() || more > 0, "there was no room");
        assert!(stopped.is_ok() || more < 100, "there was room enough");
        assert!(contents(&image) == before);
        drop(image);
        assert!(checked(&disk, false).errors.is_empty());
        let image = open(&disk);
        assert!(contents(&image) == before);
        disk.set_capacity(None);
        compact(&image).unwrap();
        drop(image);
        assert_clean(&disk);
        assert!(contents(&open_read_only(&disk).unwrap()) == before);
        assert!(places(&disk).is_sorted());
    }
}

#[test]
fn the_host_gives_little_more_for_the_time_of_the_work() {
    let disk = disordered(2000, 4096, 5);
    let allocated = disk.allocated_bytes().unwrap();
    disk.set_capacity(Some(allocated + allocated / 4));
    compact(&open(&disk)).unwrap();
    assert!(places(&disk).is_sorted());
}

#[test]
fn a_failing_host_stops_it_and_loses_nothing() {
    for call in [Call::Read, Call::Write, Call::Punch, Call::Datasync] {
        let afters = [0, 5, 40, 90].into_iter();
        for (after, landed) in afters.flat_map(|it| Landed::ALL.map(|landed| (it, landed))) {
            let disk = disordered(300, 4096, after);
            let before = contents(&open_read_only(&disk).unwrap());
            let image = open(&disk);
            disk.inject(Fault::fail(Errno::IO).landed(landed).on(call).after(after));
            let _ = compact(&image);
            disk.clear_faults();
            drop(image);
            assert_eq!(checked(&disk, false).errors, Vec::<String>::new(), "{call:?} {after}");
            assert!(contents(&open_read_only(&disk).unwrap()) == before, "{call:?} {after}");
        }
    }
}

#[test]
fn zeroes_that_have_a_place_keep_one() {
    let disk = disordered(400, 4096, 9);
    let number = |at: u64| {
        let mut bytes = [0; 8];
        disk.read_at(at, &mut bytes);
        u64::from_be_bytes(bytes)
    };
    let l2 = number(number(40)) & 0x00ff_ffff_ffff_fe00;
    for entry in (0..400).step_by(3) {
        let at = l2 + entry * 8;
        if number(at) != 0 {
            disk.write_at(at, &(number(at) | 1).to_be_bytes());
        }
    }
    let reserved = || (0..512).filter(|entry| number(l2 + entry * 8) & 1 != 0).count();
    let before = (contents(&open_read_only(&disk).unwrap()), reserved());
    assert!(before.1 > 50);
    let image = open(&disk);
    compact(&image).unwrap();
    drop(image);
    assert_clean(&disk);
    assert!(contents(&open_read_only(&disk).unwrap()) == before.0);
    assert_eq!(reserved(), before.1);
    assert!(places(&disk).is_sorted());
}

#[test]
fn what_the_backing_file_has_stays_there() {
    let base = SimDisk::from_bytes(&stamped(0, 3000, 1));
    let disk = new_overlay(4000, 4096);
    disorder(&open_on(&disk, Some(raw(&base))), 8, 3);
    let allocated = disk.allocated_bytes().unwrap();
    let image = open_on(&disk, Some(raw(&base)));
    let before = contents(&image);
    compact(&image).unwrap();
    assert!(contents(&image) == before);
    drop(image);
    assert_clean(&disk);
    assert!(disk.allocated_bytes().unwrap() <= allocated);
    assert!(contents(&open_on(&disk, Some(raw(&base)))) == before);
}

#[test]
fn long_pieces_stay_where_they_are() {
    let (cluster_bytes, sectors) = (65_536, (80 << 20) / 512);
    let disk = new_disk(sectors, cluster_bytes);
    let image = open(&disk);
    let mut guest = Guest::new(&image);
    let half = sectors / 2;
    guest.run(Op::Write(extent(half, half)), 1).unwrap();
    guest.run(Op::Write(extent(0, 128)), 2).unwrap();
    guest.run(Op::Write(extent(128, half - 128)), 3).unwrap();
    drop((guest, image));
    let before = places(&disk);
    compact(&open(&disk)).unwrap();
    assert_eq!(places(&disk), before);
}

#[test]
fn an_image_with_errors_is_refused() {
    let disk = disordered(100, 4096, 1);
    let mut bytes = [0; 8];
    disk.read_at(40, &mut bytes);
    disk.read_at(u64::from_be_bytes(bytes), &mut bytes);
    let l2 = u64::from_be_bytes(bytes) & 0x00ff_ffff_ffff_fe00;
    let mut entries = [0; 800];
    disk.read_at(l2, &mut entries);
    let used: Vec<usize> = (0..100).filter(|it| entries[it * 8..it * 8 + 8] != [0; 8]).collect();
    // Two guest clusters share one host cluster, with both COPIED flags set.
    entries.copy_within(used[0] * 8..used[0] * 8 + 8, used[1] * 8);
    disk.write_at(l2, &entries);
    let refusal = compact(&open(&disk)).unwrap_err().to_string();
    assert!(refusal.contains("the image is damaged"), "{refusal}");
}
