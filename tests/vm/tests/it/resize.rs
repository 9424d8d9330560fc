//! A disk grows while the guest runs, and the guest sees and uses the new space.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::Lab;

const MIB: u64 = 1 << 20;

#[test]
fn a_running_guest_sees_and_uses_the_new_size() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image("64M")?;
    let mut daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    ensure!(guest.run("blockdev --getsize64 /dev/vda")?.trim() == (64 * MIB).to_string());

    daemon.resize(&image, "96M")?;
    guest.run(&wait_for_size(96 * MIB))?;
    guest.run(
        "yes flowstone | head -c 1048576 >/tmp/pattern
         dd if=/tmp/pattern of=/dev/vda oflag=direct bs=1M seek=95
         dd if=/dev/vda iflag=direct bs=1M skip=95 | cmp - /tmp/pattern",
    )?;
    guest.power_off()?;
    daemon.terminate()?;

    let mut last_line = [0; 10];
    File::open(&image)?.read_exact_at(&mut last_line, 95 * MIB)?;
    ensure!(&last_line == b"flowstone\n", "the image holds {last_line:?}");
    Ok(())
}

fn wait_for_size(bytes: u64) -> String {
    format!(
        "for i in $(seq 100); do
             [ $(blockdev --getsize64 /dev/vda) = {bytes} ] && exit 0
             sleep 0.1
         done
         echo still $(blockdev --getsize64 /dev/vda) bytes
         exit 1"
    )
}
