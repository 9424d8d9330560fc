//! A guest that mounts with `-o discard` deletes small files: the host gets their space with few
//! calls.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::{DISK_CHECKSUM, host, image_checksum};

const FILES: u64 = 2000;
const FILE_BYTES: u64 = 16 << 10;

#[test]
fn deleted_small_files_give_their_space_back_in_few_calls() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image_of(Format::Raw, "192M", &[])?;
    let mut daemon = lab.serve(&image, &["--queues", "2", "--pollers", "per-queue"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    let blocks = FILE_BYTES >> 12;
    guest.run(&format!(
        "mkfs.ext4 -q /dev/vda
         mount -o discard /dev/vda /mnt
         mkdir /mnt/files
         cd /mnt/files
         i=0
         while [ $i -lt {FILES} ]; do
             dd if=/dev/urandom of=$i bs=4k count={blocks} status=none
             i=$((i + 1))
         done
         sync
         xxhsum -q *0 >/mnt/sums
         sync"
    ))?;
    let before = daemon.stats()?;
    // One in ten stays, so that the deleted space is not contiguous.
    guest.run("cd /mnt/files; rm *[1-9]; cd /; sync; sleep 1; sync")?;
    let deleted = FILES * 9 / 10 * FILE_BYTES;
    let enough = before.allocated_bytes.saturating_sub(deleted * 9 / 10);
    daemon.wait_for("space for the host", |stats| stats.allocated_bytes <= enough)?;
    let after = daemon.stats()?;
    let (was, is) = (before.discards()?, after.discards()?);
    let (ranges, merged, punches) =
        (is.ranges - was.ranges, is.merged - was.merged, is.punches - was.punches);
    println!(
        "{} bytes back of {deleted}; {} discard requests, {ranges} ranges, {merged} merged, \
         {punches} punches",
        before.allocated_bytes - after.allocated_bytes,
        after.requests("discard") - before.requests("discard"),
    );
    ensure!(punches <= merged && merged <= ranges, "{was:?} became {is:?}");
    guest.run("cd /mnt/files; xxhsum -q -c /mnt/sums >/dev/null; cd /; umount /mnt")?;
    guest.run("e2fsck -fn /dev/vda")?;
    disk_errors::none_logged(&mut guest)?;
    let seen_by_guest = guest.run(DISK_CHECKSUM)?;
    guest.power_off()?;
    daemon.terminate()?;
    ensure!(seen_by_guest == image_checksum(&image)?, "host and guest disagree");
    host("e2fsck", &["-fn", &image.to_string_lossy()]).map(drop)
}
