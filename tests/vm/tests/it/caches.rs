//! A guest's re-reads do not reach the disk, and its journal stays out of caches.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use flowstone_testkit::page_cache::resident;
use flowstone_testkit::truth::{Holds, Truth};
use flowstone_testkit::wait_for;
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::classes::wait_for_layout;

/// Many small commits, which wrap around in the journal.
const COMMITS: &str = "
    mount /dev/vda /mnt
    fio --name=commits --directory=/mnt --rw=write --bs=16k --size=11M --fallocate=none --fsync=1 >/dev/null
    umount /mnt";

#[test]
fn files_are_read_again_from_memory() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image("256M")?;
    let mut daemon = lab.serve(&image, &["--cache", "64M"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    guest.run(
        "mkfs.ext4 -q /dev/vda; mount /dev/vda /mnt; head -c $((32 << 20)) /dev/urandom >/mnt/file; sync",
    )?;
    let vms = daemon.vms()?;
    ensure!(vms.len() == 1 && vms[0].cpus == 2 && vms[0].memory_bytes == 512 << 20, "{vms:?}");
    ensure!(vms[0].weight == 1.0 && vms[0].pid == Some(guest.pid()), "{vms:?}");
    let mut read = || {
        let before = daemon.cache()?;
        let sum = guest.run("echo 3 >/proc/sys/vm/drop_caches; xxhsum -q /mnt/file")?;
        let after = daemon.cache()?;
        Ok::<_, anyhow::Error>((sum, after.hits - before.hits, after.misses - before.misses))
    };
    let (first, ..) = read()?;
    let (second, hits, misses) = read()?;
    ensure!(first == second);
    println!("{hits} blocks from memory, {misses} from the disk");
    ensure!(hits > 8000 && misses * 20 < hits, "{hits} hits, {misses} misses");
    guest.power_off()?;
    daemon.terminate()
}

/// Returns how many blocks of the journal are in the page cache after a guest's commits, and their
/// total.
fn journal_in_page_cache(lab: &Lab, name: &str, pdc: &str) -> Result<(usize, usize)> {
    let image = lab.folder().join(format!("{name}.raw"));
    std::fs::File::create(&image)?.set_len(128 << 20)?;
    let mut daemon = lab.serve_as(name, &image, &["--direct", "off", "--pdc", pdc])?;
    let mut guest = lab.boot(&daemon, 1)?;
    guest.run("mkfs.ext4 -q -b 4096 -J size=4 /dev/vda")?;
    // What it writes before that is no journal yet.
    wait_for_layout(&daemon, &["\"kind\":\"ext4\"", "\"journal_bytes\":4194304"])?;
    guest.run(COMMITS)?;
    guest.power_off()?;
    let counted = count_journal(&image);
    daemon.terminate()?;
    Ok(counted)
}

fn count_journal(image: &Path) -> (usize, usize) {
    let pages = resident(image);
    let truth = Truth::of_ext4(&image.to_string_lossy());
    let journal =
        (0..pages.len()).filter(|page| truth.at(*page as u64 * 4096) == Some(Holds::Journal));
    let all: Vec<bool> = journal.map(|page| pages[page]).collect();
    (all.iter().filter(|resident| **resident).count(), all.len())
}

/// In a log image journal blocks are scattered: blocks that begin like jbd2's descriptors and
/// commits are counted. Data and journal are written at the same time, and in the same segments,
/// which are cleaned while the guest is quiet.
///
/// Regression: cleaning brought the journal back into the page cache, and the readahead of the host
/// what lay behind it: 600 of 945 blocks.
#[test]
fn journals_in_log_images_do_not_stay_in_the_page_cache() -> Result<()> {
    const JBD2_MAGIC: [u8; 4] = 0xc03b_3998_u32.to_be_bytes();
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image_of(Format::Log, "128M", &[])?;
    let mut daemon = lab.serve(&image, &["--direct", "off"])?;
    let mut guest = lab.boot(&daemon, 1)?;
    guest.run("mkfs.ext4 -q -b 4096 -J size=4 /dev/vda")?;
    // What it writes before that is no journal yet.
    wait_for_layout(&daemon, &["\"kind\":\"ext4\"", "\"journal_bytes\":4194304"])?;
    guest.run(COMMITS)?;
    wait_until_cleaned(&daemon);
    guest.power_off()?;
    let (pages, bytes) = (resident(&image), std::fs::read(&image)?);
    let blocks = || pages.iter().zip(bytes.chunks(4096));
    let journal: Vec<bool> = blocks()
        .filter(|(_, block)| block.starts_with(&JBD2_MAGIC))
        .map(|(page, _)| *page)
        .collect();
    let (with, all) = (journal.iter().filter(|resident| **resident).count(), journal.len());
    let others = pages.iter().filter(|resident| **resident).count() - with;
    println!("{with} of {all} blocks of the journal in the page cache, and {others} others");
    ensure!(all > 500 && with * 10 < all, "{with} of {all} are in the page cache");
    ensure!(others > 1000, "data is not in the page cache either: {others}");
    daemon.terminate()
}

/// Waits until the image has been cleaned, and is at rest.
fn wait_until_cleaned(daemon: &Daemon) {
    let mut before = 0;
    wait_for("the image is cleaned", || {
        let cleaned = daemon.stats().ok().and_then(|it| it.log).map_or(0, |it| it.cleaned_segments);
        std::thread::sleep(Duration::from_secs(1));
        let is_at_rest = cleaned > 0 && cleaned == std::mem::replace(&mut before, cleaned);
        if is_at_rest { Ok(()) } else { Err(cleaned) }
    });
}

#[test]
fn journals_do_not_stay_in_the_page_cache() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let (with, all) = journal_in_page_cache(&lab, "with", "on")?;
    let (without, _) = journal_in_page_cache(&lab, "without", "off")?;
    println!("of {all} blocks of the journal {with} in the page cache with PDC, {without} without");
    ensure!(without * 2 > all, "the journal has not gone round: {without} of {all}");
    ensure!(with * 10 < all, "{with} of {all} blocks of the journal are in the page cache");
    Ok(())
}
