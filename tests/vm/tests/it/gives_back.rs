//! Space that a guest discards in any way is freed on the host, whatever the image format;
//! neighbouring data is unchanged. One guest has a disk of each format.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::{check_clean, host};

const MIB: u64 = 1 << 20;
const QUEUES: u16 = 2;
/// Segment size of the log image. Data that shares a segment with live data stays: at both ends of
/// the discarded range, and with metadata written meanwhile.
const SEGMENT: &str = "256K";
const LOG_REST_BYTES: u64 = MIB;
/// Least share of discarded space to be freed; the rest may be taken by new metadata.
const PERCENT_MIN: u64 = 97;
/// Remaining size of an empty image: tables, and preallocated segments.
const EMPTY_BYTES_MAX: u64 = 6 * MIB;
/// A log image frees space when its guest has been idle for some seconds.
const RETURN_TIMEOUT: Duration = flowstone_testkit::HANG;

struct FileSystem {
    name: &'static str,
    disk_size: &'static str,
    make: &'static str,
    discarding: &'static str,
    check: &'static str,
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    disk_size: "128M",
    make: "mkfs.ext4 -q",
    discarding: "discard",
    check: "e2fsck -fn",
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    disk_size: "320M",
    make: "mkfs.xfs -q -f",
    discarding: "discard",
    check: "xfs_repair -n",
};
const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    disk_size: "256M",
    make: "mkfs.btrfs -q -f",
    discarding: "discard=sync",
    check: "btrfs check",
};

#[test]
fn ext4_gives_space_back_from_every_format() -> Result<()> {
    gives_space_back(&EXT4)
}

#[test]
fn xfs_gives_space_back_from_every_format() -> Result<()> {
    gives_space_back(&XFS)
}

#[test]
fn btrfs_gives_space_back_from_every_format() -> Result<()> {
    gives_space_back(&BTRFS)
}

fn gives_space_back(system: &FileSystem) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let mut bench = Bench::boot(&lab, system.disk_size)?;
    let FileSystem { name, make, discarding, check, .. } = system;
    let mount = format!("mount -t {name} /dev/$d /$d");

    // The disk is not empty; the old content is discarded with the new file system.
    bench.on_each("dd if=/tmp/random of=/dev/$d bs=1M oflag=direct status=none")?;
    bench.on_each(&format!("{make} /dev/$d"))?;
    for disk in &bench.disks {
        // The new file system takes space, too: the size in `du` is the sum of both.
        disk.wait_until("mkfs", |disk| {
            Ok(disk.daemon.stats()?.space()?.reclaimed_bytes >= disk.wanted(24 * MIB))
        })?;
    }
    bench.on_each(&format!(
        "mkdir -p /$d; {mount}
         dd if=/dev/urandom of=/$d/stays bs=1M count=8 status=none
         xxhsum -q /$d/stays >/$d/sum
         cp /tmp/random /$d/goes; sync"
    ))?;
    // An unmount makes sure that XFS has freed the blocks of a deleted file.
    bench.on_each("rm /$d/goes; umount /$d")?;
    let trim = format!("{mount}; fstrim /$d; umount /$d");
    match *name {
        "btrfs" => bench.btrfs_trim_returns(24 * MIB, &trim)?,
        _ => bench.returns("fstrim", 24 * MIB, &trim)?,
    }
    bench.on_each(&format!("{mount} -o {discarding}; cp /tmp/random /$d/goes; sync"))?;
    // ext4 discards in the background, and drops what is left when it is unmounted.
    bench.returns("-o discard", 24 * MIB, "rm /$d/goes; sync; sleep 1; sync; umount /$d")?;
    bench.on_each(&format!("{mount}; xxhsum -q -c /$d/sum; umount /$d; {check} /dev/$d"))?;
    bench.returns("blkdiscard", 8 * MIB, "blkdiscard /dev/$d")?;
    bench.on_each(&is_zero(0, 32))?;
    for disk in &bench.disks {
        disk.wait_for("nothing to be left", EMPTY_BYTES_MAX)?;
    }
    bench.end()
}

#[test]
fn blkdiscard_gives_back_its_range_and_leaves_the_rest_of_every_format() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let mut bench = Bench::boot(&lab, "64M")?;
    bench.on_each("dd if=/tmp/random of=/dev/$d bs=1M oflag=direct status=none")?;
    bench.returns("blkdiscard", 12 * MIB, "blkdiscard -o 6M -l 12M /dev/$d")?;
    for range in ["count=6", "skip=18 count=6"] {
        bench.on_each(&format!(
            "dd if=/tmp/random of=/tmp/wrote bs=1M {range} status=none
             dd if=/dev/$d of=/tmp/found bs=1M {range} status=none
             [ \"$(xxhsum -q </tmp/wrote)\" = \"$(xxhsum -q </tmp/found)\" ]"
        ))?;
    }
    bench.on_each(&is_zero(6, 12))?;
    bench.end()
}

/// Makes a script that fails unless these mebibytes of a disk are zeroes.
fn is_zero(from: u32, count: u32) -> String {
    format!(
        "dd if=/dev/$d of=/tmp/found bs=1M skip={from} count={count} status=none
         rm -f /tmp/zeroes; truncate -s {count}M /tmp/zeroes
         [ \"$(xxhsum -q </tmp/zeroes)\" = \"$(xxhsum -q </tmp/found)\" ]"
    )
}

/// A guest with a disk of each format.
struct Bench {
    guest: Guest,
    disks: Vec<Disk>,
}

struct Disk {
    format: Format,
    image: PathBuf,
    daemon: Daemon,
}

impl Bench {
    fn boot(lab: &Lab, size: &str) -> Result<Self> {
        let disks = Format::ALL.map(|format| -> Result<Disk> {
            let options: &[&str] = match format {
                Format::Log => &["--segment", SEGMENT],
                Format::Raw | Format::Qcow2 => &[],
            };
            let image = lab.image_of(format, size, options)?;
            let queues = QUEUES.to_string();
            let daemon =
                lab.serve_as(&format!("{format:?}"), &image, &["--queues", queues.as_str()])?;
            Ok(Disk { format, image, daemon })
        });
        let disks = disks.into_iter().collect::<Result<Vec<Disk>>>()?;
        let daemons = disks.iter().map(|disk| &disk.daemon);
        let mut guest = lab.boot_machine(&Lab::machine_of(daemons, QUEUES))?;
        guest.run("dd if=/dev/urandom of=/tmp/random bs=1M count=24 status=none")?;
        Ok(Self { guest, disks })
    }

    /// Runs a script for each disk, which is `$d`: vda, vdb, vdc.
    fn on_each(&mut self, script: &str) -> Result<()> {
        self.guest.run(&format!("for d in vda vdb vdc; do\n{script}\ndone")).map(drop)
    }

    /// Runs a script that frees `bytes` bytes of each disk; the host must have them soon.
    fn returns(&mut self, what: &str, bytes: u64, script: &str) -> Result<()> {
        let before = self.on_host()?;
        self.on_each(script).with_context(|| what.to_owned())?;
        self.have_returned(what, bytes, &before)
    }

    /// The same with a script that trims btrfs, which once trimmed too little on a busy machine:
    /// probably it removes block groups that have become empty, and an `fstrim` beside that passes
    /// over them. So a second one may follow.
    fn btrfs_trim_returns(&mut self, bytes: u64, script: &str) -> Result<()> {
        let before = self.on_host()?;
        self.on_each(script).context("fstrim")?;
        self.have_returned("fstrim", bytes, &before).or_else(|error| {
            println!("the guest trims again: {error:#}");
            self.on_each(script).context("second fstrim")?;
            self.have_returned("second fstrim", bytes, &before)
        })
    }

    /// Returns the space of each image. Earlier writes are complete, and nothing is in flight.
    fn on_host(&mut self) -> Result<Vec<OnHost>> {
        self.guest.run("sync")?;
        self.disks.iter().map(|disk| OnHost::of(&disk.image)).collect()
    }

    /// Waits until each image takes `bytes` bytes less than before.
    fn have_returned(&self, what: &str, bytes: u64, before: &[OnHost]) -> Result<()> {
        for (disk, before) in self.disks.iter().zip(before) {
            let wanted = disk.wanted(bytes);
            disk.wait_for(what, before.blocks.saturating_sub(wanted))?;
            let after = OnHost::of(&disk.image)?;
            println!(
                "{:?}, {what}: {bytes} bytes given up, {before:?} became {after:?}",
                disk.format
            );
            ensure!(after.extents + wanted <= before.extents, "FIEMAP still lists it");
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        disk_errors::none_logged(&mut self.guest)?;
        self.guest.power_off()?;
        for disk in &mut self.disks {
            disk.daemon.terminate()?;
            check_clean(&disk.image)?;
        }
        Ok(())
    }
}

impl Disk {
    /// Returns how many of `bytes` freed bytes the host must have.
    fn wanted(&self, bytes: u64) -> u64 {
        let rest = if self.format == Format::Log { LOG_REST_BYTES } else { 0 };
        bytes * PERCENT_MIN / 100 - rest
    }

    /// Waits until the image takes at most `bytes_max` on the host.
    fn wait_for(&self, what: &str, bytes_max: u64) -> Result<()> {
        self.wait_until(what, |disk| Ok(OnHost::of(&disk.image)?.blocks <= bytes_max))
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + RETURN_TIMEOUT;
        while !is_so(self)? {
            if Instant::now() > deadline {
                let (format, now) = (self.format, OnHost::of(&self.image)?);
                bail!("{format:?}, {what}: {now:?}; {:?}", self.daemon.stats()?);
            }
            sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

/// Space of an image on the host, in bytes.
#[derive(Clone, Copy, Debug)]
struct OnHost {
    /// Allocated, as in `du`.
    blocks: u64,
    /// Sum of the extents, as in `filefrag`.
    extents: u64,
}

impl OnHost {
    fn of(image: &Path) -> Result<Self> {
        let listed = host("filefrag", &["-v", "-b512", &image.to_string_lossy()])?;
        let extents = listed.lines().filter_map(sectors).sum::<u64>() * 512;
        Ok(Self { blocks: image.metadata()?.blocks() * 512, extents })
    }
}

/// Returns the length of an extent: `NUMBER: FIRST.. LAST: FIRST.. LAST: LENGTH: ...`.
fn sectors(line: &str) -> Option<u64> {
    let mut fields = line.split(':').map(str::trim);
    fields.next()?.parse::<u64>().ok()?;
    fields.nth(2)?.parse().ok()
}
