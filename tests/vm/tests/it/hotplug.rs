//! Guest memory comes and goes while requests are in flight.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use serde_json::json;

use crate::disk_errors;
use crate::load::{LOAD_BEGINS, verified_load};

/// Puts new memory to use, for pages that can move: fio's buffers land there first.
const ONLINE_NEW_MEMORY: &str = "for state in /sys/devices/system/memory/memory*/state; do
         if grep -q offline $state; then echo online_movable >$state; fi
     done
     awk '/zone.*Movable/ { zone = 1 } zone && /present/ { print $2; exit }' /proc/zoneinfo";

#[test]
fn memory_plugged_in_under_load_can_be_used_for_requests() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image("64M")?;
    let mut daemon = lab.serve(&image, &["--queues", "2", "--layer", "delay=0-5ms"])?;
    let mut machine = Lab::machine(&daemon, 2);
    machine.pluggable_mib = 512;
    let mut guest = lab.boot_machine(&machine)?;

    guest.start(&verified_load(24))?;
    guest.wait_for(LOAD_BEGINS)?;
    for slot in ["first", "second"] {
        sleep(Duration::from_secs(1));
        plug(&mut guest, slot)?;
    }
    guest.finish()?;

    let movable_pages: u64 = guest.run(ONLINE_NEW_MEMORY)?.trim().parse()?;
    ensure!(movable_pages > 0, "the guest did not take the new memory into use");
    guest.run(&verified_load(16))?;
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()
}

fn plug(guest: &mut Guest, slot: &str) -> Result<()> {
    let memory =
        json!({ "qom-type": "memory-backend-memfd", "id": slot, "size": 128 << 20, "share": true });
    guest.qmp("object-add", &memory)?;
    let module = json!({ "driver": "pc-dimm", "id": format!("dimm-{slot}"), "memdev": slot });
    guest.qmp("device_add", &module).map(drop)
}
