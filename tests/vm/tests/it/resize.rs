//! A disk grows while the guest runs, and the guest sees and uses the new space.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::Lab;

use crate::load::{image_part_checksum, write_random};

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

    daemon.resize("96M")?;
    guest.run(&wait_for_size(96 * MIB))?;
    let written = guest.run(&write_random("oflag=direct", 95, 1))?;
    guest.power_off()?;
    daemon.terminate()?;

    ensure!(image_part_checksum(&image, 95, 1)? == written, "the new space holds something else");
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
