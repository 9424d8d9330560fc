//! What a guest deletes and trims comes back to the host, on every format, and others can use it.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use flowstone_vmtest::framework::daemon::{Daemon, flowstone};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::host;

const MIB: u64 = 1 << 20;
const FILES: u64 = 40;
const FILE_MIB: u64 = 4;
/// A log image gives its reserve back when its guest has been quiet for so long.
const REST: Duration = Duration::from_secs(4);

/// Files of random bytes that fill most of the disk, and their checksums.
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
         sha256sum *0 >/mnt/sums
         cd /; sync"
        ))
        .map(drop)
}

/// All but one file in ten go; the others must be as they were.
fn delete_and_trim(guest: &mut Guest) -> Result<()> {
    guest.run("cd /mnt/files; rm *[1-9]; cd /; sync; fstrim /mnt; sync")?;
    guest.run("cd /mnt/files; sha256sum -c /mnt/sums >/dev/null; cd /")?;
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

/// Returns the share of what was deleted that the host has back.
fn share_returned(format: Format) -> Result<Option<f64>> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(None) };
    let image = lab.image_of(format, "224M", &[])?;
    let daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    fill(&mut guest)?;
    sleep(REST);
    let before = daemon.stats()?.allocated_bytes;
    delete_and_trim(&mut guest)?;
    let goal = before.saturating_sub(deleted_bytes() * 9 / 10);
    daemon.wait_for("space for the host", |stats| stats.allocated_bytes <= goal)?;
    sleep(REST);
    let after = daemon.stats()?.allocated_bytes;
    end(guest, daemon)?;
    flowstone(&["check", "--data", &image.to_string_lossy()])?;
    let share = before.saturating_sub(after) as f64 / deleted_bytes() as f64;
    println!("{format:?}: {before} bytes before, {after} after, {:.1} %", share * 100.0);
    Ok(Some(share))
}

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_raw_image() -> Result<()> {
    let Some(share) = share_returned(Format::Raw)? else { return Ok(()) };
    ensure!(share >= 0.98, "{share}");
    Ok(())
}

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_qcow2_image() -> Result<()> {
    let Some(share) = share_returned(Format::Qcow2)? else { return Ok(()) };
    ensure!(share >= 0.98, "{share}");
    Ok(())
}

#[test]
fn fstrim_gives_the_host_its_space_back_from_a_log_image() -> Result<()> {
    let Some(share) = share_returned(Format::Log)? else { return Ok(()) };
    ensure!(share >= 0.95, "{share}");
    Ok(())
}

/// A small host file system, unmounted when dropped.
struct Host(PathBuf);

impl Host {
    fn mount(lab: &Lab, bytes: u64) -> Result<Self> {
        let (file, at) = (lab.folder().join("host.ext4"), lab.folder().join("host"));
        std::fs::File::create(&file)?.set_len(bytes)?;
        std::fs::create_dir(&at)?;
        host("mkfs.ext4", &["-q", "-F", &file.to_string_lossy()])?;
        host("mount", &["-o", "loop", &file.to_string_lossy(), &at.to_string_lossy()])?;
        Ok(Self(at))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel takes the rings of a daemon that has ended apart a little later.
        let _ = host("umount", &["--lazy", &self.0.to_string_lossy()]);
    }
}

/// S3.7 of FTRIM: several machines share a file system that has not room for all of them.
#[test]
fn what_one_guest_deletes_another_can_use() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let shared = Host::mount(&lab, 300 * MIB)?;
    let mut machines = Vec::new();
    for name in ["first.raw", "second.raw"] {
        let image = shared.0.join(name);
        let path = image.to_str().context("a plain path")?;
        flowstone(&["create", "--size", "224M", path])?;
        let folder = lab.folder().join(name);
        std::fs::create_dir(&folder)?;
        machines.push(Daemon::serve(&image, &[], &folder)?);
    }
    let second = machines.pop().context("two machines")?;
    let first = machines.pop().context("two machines")?;
    let mut guest = lab.boot(&first, 1)?;
    fill(&mut guest)?;
    delete_and_trim(&mut guest)?;
    let mut other = lab.boot(&second, 1)?;
    fill(&mut other)?;
    other.run("cd /mnt/files; echo 3 >/proc/sys/vm/drop_caches; sha256sum -c /mnt/sums; cd /")?;
    disk_errors::none_logged(&mut other)?;
    end(other, second)?;
    end(guest, first)
}
