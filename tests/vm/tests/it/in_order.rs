//! A log image is sorted while a guest's file system is mounted and commits now and then.

use anyhow::{Result, ensure};
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
         fio --name=scattered --directory=/mnt --size=24M --rw=randwrite --bs=4k --direct=1 \
             --minimal >/dev/null
         xxhsum -q /mnt/scattered* >/mnt/sums; sync
         (while sleep 3; do date >/mnt/now; sync; done) >/dev/null 2>&1 &
         echo $! >/tmp/commits",
    )?;
    let written = daemon.stats()?.requests("write");
    daemon.wait_for("pass beside the guest", |stats| {
        stats.log.is_some_and(|log| log.resort_passes > 0)
    })?;
    let beside = daemon.stats()?.requests("write") - written;
    println!("{beside} writes beside the pass");
    ensure!(beside > 4, "the guest was silent: {beside} writes");
    guest.run("echo 3 >/proc/sys/vm/drop_caches; xxhsum -q -c /mnt/sums >/dev/null")?;
    guest.run("kill $(cat /tmp/commits); cd /; umount /mnt; e2fsck -fn /dev/vda")?;
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()?;
    check_clean(&image)
}
