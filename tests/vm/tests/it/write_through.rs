//! Write-through: a guest that turned its write cache off sends no FLUSH and loses nothing.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::Lab;

use crate::load::{image_part_checksum, write_random};

#[test]
fn without_write_cache_writes_are_in_the_image_without_any_flush() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image("64M")?;
    let mut daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut guest = lab.boot(&daemon, 2)?;

    guest.run("echo 'write through' >/sys/block/vda/cache_type")?;
    ensure!(guest.run("cat /sys/block/vda/queue/write_cache")? == "write through\n");
    let before = daemon.stats()?;
    let written = guest.run(&write_random("conv=fsync", 0, 8))?;
    let after = daemon.stats()?;
    guest.kill()?;
    daemon.kill()?;

    ensure!(after.requests("write") > before.requests("write"), "no write arrived");
    ensure!(after.requests("flush") == before.requests("flush"), "the guest sent a flush");
    ensure!(image_part_checksum(&image, 0, 8)? == written, "writes are missing");
    Ok(())
}
