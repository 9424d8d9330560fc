//! Power failure: guest and daemon are killed at once, and the content of the disk's write cache is
//! lost (`flowstone-power-cut`). Data that the guest has made durable must be there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};
use flowstone_vmtest::framework::workspace;

use crate::disk_errors;
use crate::load::check_sound;
use crate::soak::{seeded, soak_deadline};

/// Range of the number of durable files before the power fails.
const FILES_BEFORE_CUT: std::ops::Range<usize> = 30..90;

struct FileSystem {
    name: &'static str,
    disk_size: &'static str,
    make: &'static str,
    check: &'static str,
    /// Options of serving its disk: a cache makes no difference.
    serve: &'static [&'static str],
}

const EXT4: FileSystem = FileSystem {
    name: "ext4",
    disk_size: "128M",
    make: "mkfs.ext4 -q /dev/vda",
    check: "e2fsck -fn /dev/vda",
    serve: &["--queues", "2", "--pollers", "per-queue"],
};
const XFS: FileSystem = FileSystem {
    name: "xfs",
    disk_size: "320M",
    make: "mkfs.xfs -q /dev/vda",
    check: "xfs_repair -n /dev/vda",
    serve: &["--queues", "2", "--cache", "4M"],
};
const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    disk_size: "160M",
    make: "mkfs.btrfs -q /dev/vda",
    check: "btrfs check /dev/vda",
    serve: &["--queues", "2"],
};

#[test]
fn ext4_on_a_log_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&EXT4, Format::Log)
}

#[test]
fn xfs_on_a_log_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&XFS, Format::Log)
}

#[test]
fn btrfs_on_a_log_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&BTRFS, Format::Log)
}

#[test]
fn ext4_on_a_qcow2_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&EXT4, Format::Qcow2)
}

#[test]
fn xfs_on_a_qcow2_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&XFS, Format::Qcow2)
}

#[test]
fn ext4_on_a_raw_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&EXT4, Format::Raw)
}

#[test]
#[ignore = "a control, as ext4 on a raw image is"]
fn soak_xfs_on_a_raw_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&XFS, Format::Raw)
}

#[test]
#[ignore = "a control, as ext4 on a raw image is"]
fn soak_btrfs_on_a_raw_image_keeps_what_was_synced_when_the_power_fails() -> Result<()> {
    one_cut(&BTRFS, Format::Raw)
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_power_cuts_of_log_images() -> Result<()> {
    let (deadline, mut random) = (soak_deadline()?, seeded());
    while Instant::now() < deadline {
        for system in [&EXT4, &XFS, &BTRFS] {
            let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
            let cuts = random.usize(1..6);
            power_cuts(&lab, system, Format::Log, cuts, &mut random)?;
        }
    }
    Ok(())
}

fn one_cut(system: &FileSystem, format: Format) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    power_cuts(&lab, system, format, 1, &mut seeded())
}

/// Makes `cuts` power failures in the life of one file system; checks it after each.
fn power_cuts(
    lab: &Lab,
    system: &FileSystem,
    format: Format,
    cuts: usize,
    random: &mut fastrand::Rng,
) -> Result<()> {
    let image = lab.image_of(format, system.disk_size, &[])?;
    let power_can_fail = workspace::power_cut()?;
    let mut daemon =
        Daemon::serve_with(power_can_fail.clone(), &image, system.serve, lab.folder())?;
    let mut guest = lab.boot(&daemon, 2)?;
    guest.run(system.make)?;
    let mut promises = Promises::default();
    for cut in 1..=cuts {
        let enough = random.usize(FILES_BEFORE_CUT);
        promises.hear(&load_until_power_fails(guest, &mut daemon, system, enough)?)?;
        check_sound(&image)?;
        // In between, writes of recovery that are not durable may be lost again.
        let next = if cut < cuts { power_can_fail.clone() } else { workspace::flowstone()? };
        daemon.restart_as(next)?;
        guest = lab.boot(&daemon, 2)?;
        promises.check(&guest.run(&look_around(system))?)?;
        guest.run(system.check)?;
        disk_errors::none_logged(&mut guest)?;
    }
    guest.power_off()?;
    daemon.terminate()?;
    check_sound(&image)?;
    make_room_for_the_next(&image)
}

/// Runs the load until `enough` files are durable, then cuts the power. Returns the guest's output
/// until then.
fn load_until_power_fails(
    mut guest: Guest,
    daemon: &mut Daemon,
    system: &FileSystem,
    enough: usize,
) -> Result<String> {
    guest.start(&load(system))?;
    guest.wait_for_output(|said| said.matches(DURABLE).count() >= enough)?;
    daemon.kill()?;
    guest.kill_in_script()
}

fn make_room_for_the_next(image: &Path) -> Result<()> {
    Ok(std::fs::remove_file(image)?)
}

const BEGIN: &str = "begin ";
const DURABLE: &str = "durable ";

/// Two writers replace files atomically and report when that is durable. Concurrently there are
/// unsynced writes, created and deleted files, and trims.
fn load(system: &FileSystem) -> String {
    format!(
        "mount -t {name} /dev/vda /mnt
         writer() {{
             n=0
             while true; do
                 file=$1.$((n % 8))
                 head -c $((n * 7919 % 150000 + 1)) /dev/urandom >/mnt/new.$1
                 sum=$(xxhsum -q </mnt/new.$1)
                 echo \"{BEGIN}$file ${{sum%% *}}\"
                 sync /mnt/new.$1
                 mv /mnt/new.$1 /mnt/$file
                 sync /mnt
                 echo \"{DURABLE}$file ${{sum%% *}}\"
                 n=$((n + 1))
             done
         }}
         come_and_go() {{
             while true; do
                 head -c 3000000 /dev/urandom >/mnt/gone.$1
                 rm -f /mnt/gone.*
                 fstrim /mnt
                 sleep 0.2
             done
         }}
         fio --name=noise --directory=/mnt --size=12M --rw=randwrite --bsrange=4k-32k \
             --ioengine=libaio --iodepth=8 --direct=1 --rate_iops=400 --time_based \
             --runtime=1000 --minimal >/tmp/noise &
         come_and_go 1 &
         writer a &
         writer b &
         wait",
        name = system.name
    )
}

/// Lists the files with their checksums, and reads all others: none may be unreadable.
fn look_around(system: &FileSystem) -> String {
    format!(
        "mount -t {name} /dev/vda /mnt
         cat /mnt/*.* >/dev/null
         cd /mnt
         xxhsum -q [ab].*
         cd /
         umount /mnt",
        name = system.name
    )
}

/// The guarantees for each file.
#[derive(Default)]
struct Promises {
    files: BTreeMap<String, Promise>,
}

#[derive(Default)]
struct Promise {
    /// It must exist.
    durable: bool,
    /// Allowed checksums: that of the durable content, and those of writes in flight.
    checksums: Vec<String>,
}

impl Promises {
    /// Processes the output of the load.
    fn hear(&mut self, said: &str) -> Result<()> {
        let whole_lines = said.rfind('\n').map_or("", |end| &said[..end]);
        for line in whole_lines.lines() {
            let (word, file, checksum) = match line.split(' ').collect::<Vec<_>>()[..] {
                [word, file, checksum] if checksum.len() == 16 => (word, file, checksum),
                _ => anyhow::bail!("the load says {line:?}; all of it:\n{said}"),
            };
            let promise = self.files.entry(file.into()).or_default();
            if format!("{word} ") == DURABLE {
                promise.durable = true;
                promise.checksums.clear();
            }
            promise.checksums.push(checksum.into());
        }
        Ok(())
    }

    /// Compares with the current files, which must stay from now on.
    fn check(&mut self, listing: &str) -> Result<()> {
        let found: BTreeMap<&str, &str> = listing
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(checksum, file)| (file, checksum))
            .collect();
        let durable = self.files.values().filter(|promise| promise.durable).count();
        ensure!(durable > 0, "nothing was promised:\n{listing}");
        for (file, promise) in &mut self.files {
            let Some(checksum) = found.get(file.as_str()) else {
                ensure!(!promise.durable, "{file} was synced and is gone; there is:\n{listing}");
                continue;
            };
            ensure!(
                promise.checksums.iter().any(|it| it == checksum),
                "{file} is {checksum}; it was to be one of {:?}",
                promise.checksums
            );
            promise.durable = true;
            promise.checksums = vec![(*checksum).into()];
        }
        Ok(())
    }
}
