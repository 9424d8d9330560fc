//! A disk served with `--readonly` can be read and nothing else.

use std::fs;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::Lab;

use crate::load::{host, image_checksum};

#[test]
fn a_readonly_disk_reads_fine_and_refuses_every_write() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image("32M")?;
    let files = lab.folder().join("files");
    fs::create_dir(&files)?;
    fs::write(files.join("greeting"), "hello\n")?;
    host("mkfs.ext4", &["-q", "-d", &files.to_string_lossy(), &image.to_string_lossy()])?;
    let before = image_checksum(&image)?;

    let mut daemon = lab.serve(&image, &["--readonly"])?;
    let mut guest = lab.boot(&daemon, 1)?;
    ensure!(guest.run("cat /sys/block/vda/ro")?.trim() == "1", "the guest believes it can write");
    let raw_write = guest.try_run("dd if=/dev/zero of=/dev/vda oflag=direct bs=4k count=1")?;
    ensure!(raw_write.code != 0, "a raw write went through: {}", raw_write.output);
    // `mount` falls back to a read-only mount, so it is the write that has to fail.
    let file_write = guest.try_run("mount -t ext4 -o rw /dev/vda /mnt; touch /mnt/new")?;
    ensure!(file_write.code != 0, "a file was created: {}", file_write.output);
    let read = guest
        .run("grep -q /mnt /proc/mounts || mount -t ext4 -o ro /dev/vda /mnt; cat /mnt/greeting")?;
    ensure!(read == "hello\n", "the guest reads {read:?}");
    guest.power_off()?;
    daemon.terminate()?;

    ensure!(image_checksum(&image)? == before, "the image has changed");
    Ok(())
}
