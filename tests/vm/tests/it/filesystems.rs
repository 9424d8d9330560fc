//! Linux file systems work on a flowstone disk, and host and guest agree on every byte.

use std::path::Path;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::{DISK_CHECKSUM, as_raw, check_clean, host, image_checksum};

struct FileSystem {
    name: &'static str,
    /// Little more than the smallest possible size, since checksums take time.
    disk_size: &'static str,
    make: &'static str,
    check: &'static str,
    /// Options of `serve`.
    options: &'static [&'static str],
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    disk_size: "128M",
    make: "mkfs.ext4 -q",
    check: "e2fsck -fn /dev/vda",
    options: &[],
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    disk_size: "320M",
    make: "mkfs.xfs -q",
    check: "xfs_repair -n /dev/vda",
    options: &[],
};
const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    disk_size: "160M",
    make: "mkfs.btrfs -q",
    check: "btrfs check /dev/vda",
    options: &[],
};

/// Far smaller than the data read and written.
const SMALL_CACHE: &[&str] = &["--cache", "2M"];
const CACHED_EXT4: FileSystem = FileSystem { options: SMALL_CACHE, ..EXT4 };
const CACHED_XFS: FileSystem = FileSystem { options: SMALL_CACHE, ..XFS };

#[test]
fn ext4_on_four_queues_keeps_its_files_with_a_cache() -> Result<()> {
    keeps_its_files(&CACHED_EXT4, Format::Raw, 4, host_checks_ext4)
}

#[test]
fn xfs_on_a_log_image_and_four_queues_keeps_its_files_with_a_cache() -> Result<()> {
    keeps_its_files(&CACHED_XFS, Format::Log, 4, |_| Ok(()))
}

#[test]
#[ignore = "log images have btrfs with one queue, and raw ones ext4 with four"]
fn soak_ext4_on_one_queue_keeps_its_files() -> Result<()> {
    keeps_its_files(&EXT4, Format::Raw, 1, host_checks_ext4)
}

#[test]
#[ignore = "with a cache it has the same disk below"]
fn soak_ext4_on_four_queues_keeps_its_files() -> Result<()> {
    keeps_its_files(&EXT4, Format::Raw, 4, host_checks_ext4)
}

#[test]
#[ignore = "log and qcow2 images have XFS, and raw ones have ext4"]
fn soak_xfs_on_four_queues_keeps_its_files() -> Result<()> {
    keeps_its_files(&XFS, Format::Raw, 4, |_| Ok(()))
}

#[test]
#[ignore = "log images have btrfs with one queue, and raw ones have ext4"]
fn soak_btrfs_on_one_queue_keeps_its_files() -> Result<()> {
    keeps_its_files(&BTRFS, Format::Raw, 1, |_| Ok(()))
}

#[test]
#[ignore = "btrfs has one queue, and ext4 four"]
fn soak_ext4_on_a_log_image_and_one_queue_keeps_its_files() -> Result<()> {
    keeps_its_files(&EXT4, Format::Log, 1, host_checks_ext4)
}

#[test]
fn ext4_on_a_log_image_and_four_queues_keeps_its_files() -> Result<()> {
    keeps_its_files(&EXT4, Format::Log, 4, host_checks_ext4)
}

#[test]
#[ignore = "with a cache it has the same disk below"]
fn soak_xfs_on_a_log_image_and_four_queues_keeps_its_files() -> Result<()> {
    keeps_its_files(&XFS, Format::Log, 4, |_| Ok(()))
}

#[test]
fn btrfs_on_a_log_image_and_one_queue_keeps_its_files() -> Result<()> {
    keeps_its_files(&BTRFS, Format::Log, 1, |_| Ok(()))
}

#[test]
fn ext4_on_a_qcow2_image_keeps_its_files_and_gives_space_back_with_four_queues() -> Result<()> {
    keeps_its_files(&EXT4, Format::Qcow2, 4, host_checks_ext4)
}

#[test]
#[ignore = "power cuts have XFS on a qcow2 image, and ext4 is on one here"]
fn soak_xfs_on_a_qcow2_image_keeps_its_files_and_gives_space_back_with_four_queues() -> Result<()> {
    keeps_its_files(&XFS, Format::Qcow2, 4, |_| Ok(()))
}

fn keeps_its_files(
    system: &FileSystem,
    format: Format,
    queues: u16,
    host_check: fn(&Path) -> Result<()>,
) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image_of(format, system.disk_size, &[])?;
    let queues_text = queues.to_string();
    let options = [&["--queues", &queues_text], system.options].concat();
    let mut daemon = lab.serve(&image, &options)?;
    let mut guest = lab.boot(&daemon, queues)?;

    guest.run(&fill(system))?;
    guest.run(&verify_again(system))?;
    give_back(&mut guest, &daemon, system)?;
    guest.run(system.check)?;
    disk_errors::none_logged(&mut guest)?;
    let seen_by_guest = guest.run(DISK_CHECKSUM)?;
    guest.power_off()?;
    daemon.terminate()?;

    check_clean(&image)?;
    let raw = as_raw(&image)?;
    ensure!(seen_by_guest == image_checksum(&raw)?, "host and guest disagree");
    host_check(&raw)
}

/// Deletes a file and checks that the host gets its space, with a log or qcow2 image after a while.
fn give_back(guest: &mut Guest, daemon: &Daemon, system: &FileSystem) -> Result<()> {
    let before = daemon.stats()?.allocated_bytes;
    guest.run(&remove_verified(system))?;
    let enough = before.saturating_sub(VERIFIED_BYTES * 3 / 4);
    daemon.wait_for("space for the host", |stats| stats.allocated_bytes <= enough)
}

fn host_checks_ext4(image: &Path) -> Result<()> {
    host("e2fsck", &["-fn", &image.to_string_lossy()]).map(drop)
}

/// Writes files with checksums, verified direct I/O and a database's fsync pattern, and trims.
fn fill(system: &FileSystem) -> String {
    let FileSystem { name, make, .. } = system;
    format!(
        "{make} /dev/vda
         mount -t {name} /dev/vda /mnt
         mkdir /mnt/files
         for i in $(seq 40); do head -c $((i * 4801)) /dev/urandom >/mnt/files/$i; done
         cd /mnt/files
         xxhsum -q * >/mnt/sums
         {FIO_VERIFIED}
         fio --name=fsync --directory=/mnt --size=4M --rw=randwrite --bs=4k --fsync=1 \
             --number_ios=150 --minimal
         rm /mnt/fsync*
         sync
         fstrim /mnt
         cd /
         umount /mnt"
    )
}

/// Checks that everything is unchanged after a remount.
fn verify_again(system: &FileSystem) -> String {
    format!(
        "mount -t {} /dev/vda /mnt
         cd /mnt/files
         xxhsum -q -c /mnt/sums
         {FIO_VERIFIED} --verify_only
         cd /
         umount /mnt",
        system.name
    )
}

/// Deletes the largest file and trims its space. XFS frees blocks of deleted files in the
/// background, which an unmount waits for.
fn remove_verified(system: &FileSystem) -> String {
    format!(
        "mount -t {name} /dev/vda /mnt
         rm /mnt/verified*
         umount /mnt
         mount -t {name} /dev/vda /mnt
         fstrim /mnt
         umount /mnt",
        name = system.name
    )
}

const VERIFIED_BYTES: u64 = 12 << 20;
const FIO_VERIFIED: &str = "fio --name=verified --directory=/mnt --size=12M --rw=randwrite --bs=4k \
                            --ioengine=libaio --iodepth=16 --direct=1 --verify=crc32c \
                            --verify_fatal=1 --minimal";
