//! A log image is sorted while a guest's file system is mounted and commits now and then.

use anyhow::Result;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::check_clean;

#[test]
fn blocks_are_put_in_order_while_a_file_system_is_mounted_and_commits() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image_of(Format::Log, "128M", &[])?;
    let mut daemon = lab.serve(&image, &["--resort", "1G"])?;
    let mut guest = lab.boot(&daemon, 1)?;
    guest.run(
        "mkfs.ext4 -q /dev/vda; mount /dev/vda /mnt
         (while sleep 8; do date >/mnt/now; sync; done) >/dev/null 2>&1 &
         echo $! >/tmp/commits",
    )?;
    // A pass may have ended already, over what mkfs wrote. The next one has commits beside it from
    // its beginning, however slow the machine is.
    let earlier = daemon.stats()?.log.map_or(0, |log| log.resort_passes);
    guest.run(
        "fio --name=scattered --directory=/mnt --size=24M --rw=randwrite --bs=4k --direct=1 \
             --minimal >/dev/null
         xxhsum -q /mnt/scattered* >/mnt/sums; sync",
    )?;
    daemon.wait_for("pass beside the guest", |stats| {
        stats.log.is_some_and(|log| log.resort_passes > earlier)
    })?;
    // They have not ended: a commit writes its journal, and later the blocks in place.
    let written = daemon.stats()?.requests("write");
    daemon.wait_for("commit of the guest", |stats| stats.requests("write") > written + 4)?;
    guest.run("echo 3 >/proc/sys/vm/drop_caches; xxhsum -q -c /mnt/sums >/dev/null")?;
    guest.run("kill $(cat /tmp/commits); cd /; umount /mnt; e2fsck -fn /dev/vda")?;
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()?;
    check_clean(&image)
}
