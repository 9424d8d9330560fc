//! Write-through: a guest that turned its write cache off sends no FLUSH and loses nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::Lab;

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
    guest.run(
        "yes flowstone | head -c 8388608 >/tmp/pattern
         dd if=/tmp/pattern of=/dev/vda bs=1M conv=fsync",
    )?;
    let after = daemon.stats()?;
    guest.kill()?;
    daemon.kill()?;

    ensure!(after.requests("write") > before.requests("write"), "no write arrived");
    ensure!(after.requests("flush") == before.requests("flush"), "the guest sent a flush");
    let mut written = vec![0; 8 << 20];
    File::open(&image)?.read_exact_at(&mut written, 0)?;
    ensure!(written.chunks(10).all(|line| b"flowstone\n".starts_with(line)), "writes are missing");
    Ok(())
}
