//! Space that a guest deletes and trims is freed on the host, with every format, and others can use
//! it.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_vmtest::framework::daemon::{Daemon, flowstone};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};
use flowstone_vmtest::framework::stats::Space;

use crate::disk_errors;
use crate::load::{check_clean, host};

const MIB: u64 = 1 << 20;
const FILES: u64 = 40;
const FILE_MIB: u64 = 4;
/// A log image frees its reserve, and scattered garbage, when its guest has been idle for this
/// long.
const REST: Duration = Duration::from_secs(8);

/// Writes files of random bytes that fill most of the disk, and their checksums.
fn fill(guest: &mut Guest) -> Result<()> {
    guest
        .run(&format!(
            "mkfs.ext4 -q /dev/vda
         mount /dev/vda /mnt
         mkdir /mnt/files
         cd /mnt/files
         i=1
         while [ $i -le {FILES} ]; do
             dd if=/dev/urandom of=$i bs=1M count={FILE_MIB} status=none
             i=$((i + 1))
         done
         xxhsum -q *0 >/mnt/sums
         cd /; sync"
        ))
        .map(drop)
}

/// Deletes nine files in ten; the others must be unchanged.
fn delete_and_trim(guest: &mut Guest) -> Result<()> {
    guest.run("cd /mnt/files; rm *[1-9]; cd /; sync; fstrim /mnt; sync")?;
    guest.run("cd /mnt/files; xxhsum -q -c /mnt/sums >/dev/null; cd /")?;
    disk_errors::none_logged(guest)
}

fn deleted_bytes() -> u64 {
    FILES / 10 * 9 * FILE_MIB * MIB
}

fn end(mut guest: Guest, mut daemon: Daemon) -> Result<()> {
    guest.run("umount /mnt; e2fsck -fn /dev/vda")?;
    guest.power_off()?;
    daemon.terminate().map(drop)
}

/// Returns the share of deleted bytes that was freed on the host.
fn share_returned(format: Format) -> Result<Option<f64>> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(None) };
    let rest = if format == Format::Log { REST } else { Duration::ZERO };
    let image = lab.image_of(format, "224M", &[])?;
    let daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    fill(&mut guest)?;
    sleep(rest);
    let before = daemon.stats()?.space()?;
    delete_and_trim(&mut guest)?;
    let share_of = |after: &Space| Ok(returned(&before, after)? / deleted_bytes() as f64);
    // Cleaning takes long on a busy machine.
    daemon.wait_for("enough space for the host", |stats| {
        let share: Result<f64> = stats.space().and_then(|space| share_of(&space));
        share.is_ok_and(|share| share >= SHARE_MIN)
    })?;
    let after = daemon.stats()?.space()?;
    end(guest, daemon)?;
    flowstone(&["check", "--data", &image.to_string_lossy()])?;
    let closed = image.metadata()?.blocks() * 512;
    let share = share_of(&after)?;
    println!("{format:?}: {before:?} became {after:?}, {closed} bytes when closed");
    println!("{format:?}: {:.1} % of what was deleted came back", share * 100.0);
    Ok(Some(share))
}

/// Returns the deleted bytes that are no longer on the host: the decrease of live bytes, minus the
/// garbage in the image. Dead space that belongs to remaining data (the headers of a log, the ends
/// of its segments) was never the guest's. Garbage freed at the same time is not counted, nor more
/// than the host has got back.
fn returned(before: &Space, after: &Space) -> Result<f64> {
    let live = |space: &Space| space.live_bytes.map(|bytes| bytes as f64).context("live bytes");
    let dead = |space: &Space| space.dead_bytes.unwrap_or(0) as f64;
    let (was, is) = (live(before)?, live(after)?);
    let still_there = (dead(after) - dead(before) * is / was).max(0.0);
    let on_host = before.allocated_bytes as f64 - after.allocated_bytes as f64;
    Ok(on_host.min(was - is - still_there))
}

/// Least share: a little of the deleted space is taken by new metadata.
const SHARE_MIN: f64 = 0.98;

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_raw_image() -> Result<()> {
    enough_comes_back(Format::Raw)
}

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_qcow2_image() -> Result<()> {
    enough_comes_back(Format::Qcow2)
}

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_log_image() -> Result<()> {
    enough_comes_back(Format::Log)
}

fn enough_comes_back(format: Format) -> Result<()> {
    let Some(share) = share_returned(format)? else { return Ok(()) };
    ensure!((SHARE_MIN..=1.01).contains(&share), "{share}");
    Ok(())
}

/// A small file system of the host, unmounted when dropped.
struct Host(PathBuf);

impl Host {
    fn mount(lab: &Lab, name: &str, bytes: u64) -> Result<Self> {
        let (file, at) = (lab.folder().join(format!("{name}.ext4")), lab.folder().join(name));
        std::fs::File::create(&file)?.set_len(bytes)?;
        std::fs::create_dir(&at)?;
        host("mkfs.ext4", &["-q", "-F", &file.to_string_lossy()])?;
        host("mount", &["-o", "loop", &file.to_string_lossy(), &at.to_string_lossy()])?;
        Ok(Self(at))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel frees the rings of a daemon a little after its end.
        let _ = host("umount", &["--lazy", &self.0.to_string_lossy()]);
    }
}

/// Size of each host file system, and of the disks that share it.
const SHARED_MIB: u64 = 104;
const DISK_MIB: u64 = 80;
/// Mebibytes that the first guest keeps, that it deletes, and that the second one cannot write
/// until then.
const STAYS_MIB: u64 = 8;
const GOES_MIB: u64 = 48;
const WANTED_MIB: u64 = 40;
/// Largest size of an image in which everything is discarded: tables, and segments in reserve.
const EMPTY_MIB: u64 = 12;

/// Several machines share file systems that are too small for all of them, one for each format:
/// data that does not fit in the second fits when the first has trimmed its deleted files.
#[test]
fn what_one_guest_deletes_another_can_use() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let mut shared = Vec::new();
    for format in Format::ALL {
        shared.push(Host::mount(&lab, &format!("host-{format:?}"), SHARED_MIB * MIB)?);
    }
    let firsts = serve_one_on_each(&lab, &shared, "first")?;
    let seconds = serve_one_on_each(&lab, &shared, "second")?;
    let mut first = lab.boot_machine(&Lab::machine_of(&firsts, 1))?;
    let mut second = lab.boot_machine(&Lab::machine_of(&seconds, 1))?;
    // Before the host may be full: a qcow2 image whose first commit finds it so frees nothing
    // (docs/qcow2.md, Limits), and a log image may have no segment for its first write.
    on_each(&mut second, "dd if=/dev/zero of=/dev/$d bs=4k count=1 conv=fsync status=none")?;
    on_each(
        &mut first,
        &format!(
            "mkfs.ext4 -q /dev/$d; mkdir /$d; mount /dev/$d /$d
             dd if=/dev/urandom of=/$d/stays bs=1M count={STAYS_MIB} status=none
             dd if=/dev/urandom of=/$d/goes bs=1M count={GOES_MIB} status=none
             xxhsum -q /$d/stays >/$d/sum; sync"
        ),
    )?;
    let random = "dd if=/dev/urandom of=/tmp/random bs=1M status=none";
    second.run(&format!("{random} count={WANTED_MIB}"))?;
    let write = "dd if=/tmp/random of=/dev/$d bs=1M oflag=direct conv=fsync status=none";
    on_each(&mut second, &format!("! {write} 2>/dev/null || {{ echo $d: fits; false; }}"))?;
    // So that the first guest has space for the metadata that it changes while deleting.
    on_each(&mut second, "blkdiscard /dev/$d; dmesg -c >/dev/null")?;
    for daemon in &seconds {
        daemon.wait_for("space", |stats| stats.allocated_bytes <= EMPTY_MIB * MIB)?;
    }
    let before = allocated(&firsts)?;
    on_each(&mut first, "rm /$d/goes; sync; fstrim /$d; sync")?;
    for (daemon, before) in firsts.iter().zip(before) {
        let goal = before.saturating_sub(GOES_MIB * MIB * 9 / 10);
        daemon.wait_for("space for the other", |stats| stats.allocated_bytes <= goal)?;
    }
    // An image that has just asked the full host again refuses writes for a moment.
    let again =
        format!("n=0; until {write} 2>/dev/null; do n=$((n + 1)); [ $n -lt 30 ]; sleep 1; done");
    on_each(&mut second, &again)?;
    let read =
        format!("dd if=/dev/$d of=/tmp/found bs=1M iflag=direct count={WANTED_MIB} status=none");
    let is_same = "[ \"$(xxhsum -q </tmp/found)\" = \"$(xxhsum -q </tmp/random)\" ]";
    on_each(&mut second, &format!("{read}; {is_same}"))?;
    on_each(&mut first, "umount /$d; mount /dev/$d /$d; xxhsum -q -c /$d/sum; umount /$d")?;
    on_each(&mut first, "e2fsck -fn /dev/$d")?;
    for (mut guest, daemons) in [(first, firsts), (second, seconds)] {
        disk_errors::none_logged(&mut guest)?;
        guest.power_off()?;
        daemons.into_iter().try_for_each(|mut daemon| daemon.terminate())?;
    }
    for at in shared {
        for entry in std::fs::read_dir(&at.0)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name != "lost+found") {
                check_clean(&path)?;
            }
        }
    }
    Ok(())
}

/// Serves a new disk of each format, each on its own file system.
fn serve_one_on_each(lab: &Lab, shared: &[Host], name: &str) -> Result<Vec<Daemon>> {
    let serve = |(at, format): (&Host, Format)| {
        let image = at.0.join(format!("{name}-{}", format.file_name()));
        let path = image.to_string_lossy();
        flowstone(&["create", "--size", &format!("{DISK_MIB}M"), &path])?;
        lab.serve_as(&format!("{name}-{format:?}"), &image, &[])
    };
    shared.iter().zip(Format::ALL).map(serve).collect()
}

/// Runs a script for each disk, which is `$d`.
fn on_each(guest: &mut Guest, script: &str) -> Result<()> {
    guest.run(&format!("for d in vda vdb vdc; do\n{script}\ndone")).map(drop)
}

fn allocated(daemons: &[Daemon]) -> Result<Vec<u64>> {
    daemons.iter().map(|daemon| Ok(daemon.stats()?.allocated_bytes)).collect()
}
