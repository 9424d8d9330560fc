//! Guest memory is plugged and unplugged while requests are in flight.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use serde_json::json;

use crate::disk_errors;
use crate::load::verified_load;

/// Puts new memory online as movable: fio's buffers are allocated there first.
const ONLINE_NEW_MEMORY: &str = "for state in /sys/devices/system/memory/memory*/state; do
         if grep -q offline $state; then echo online_movable >$state; fi
     done
     awk '/zone.*Movable/ { zone = 1 } zone && /present/ { print $2; exit }' /proc/zoneinfo";

const SLOTS: [&str; 2] = ["first", "second"];
/// Time for the guest to process the plugged memory.
const SETTLING: Duration = Duration::from_millis(300);
const UNPLUG_TIMEOUT: Duration = flowstone_testkit::HANG;

#[test]
fn memory_comes_and_goes_under_load() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image("64M")?;
    let mut daemon = lab.serve(&image, &["--queues", "2", "--layer", "delay=0-5ms"])?;
    let mut machine = Lab::machine(&daemon, 2);
    machine.pluggable_mib = 512;
    let mut guest = lab.boot_machine(&machine)?;

    under_load(&mut guest, &daemon, |guest| SLOTS.iter().try_for_each(|slot| plug(guest, slot)))?;
    let movable_pages: u64 = guest.run(ONLINE_NEW_MEMORY)?.trim().parse()?;
    ensure!(movable_pages > 0, "the guest did not take the new memory into use");
    under_load(&mut guest, &daemon, |guest| SLOTS.iter().try_for_each(|slot| unplug(guest, slot)))?;

    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()
}

fn under_load(
    guest: &mut Guest,
    daemon: &Daemon,
    act: impl FnOnce(&mut Guest) -> Result<()>,
) -> Result<()> {
    let before = daemon.stats()?.all_requests();
    guest.start(&verified_load(24))?;
    guest.wait_for_requests(daemon, before + 500)?;
    act(guest)?;
    guest.finish().map(drop)
}

fn plug(guest: &mut Guest, slot: &str) -> Result<()> {
    let memory =
        json!({ "qom-type": "memory-backend-memfd", "id": slot, "size": 128 << 20, "share": true });
    guest.qmp("object-add", &memory)?;
    let module = json!({ "driver": "pc-dimm", "id": module_of(slot), "memdev": slot });
    guest.qmp("device_add", &module)?;
    sleep(SETTLING);
    Ok(())
}

/// The guest migrates its pages and releases the memory, then QEMU unmaps it.
fn unplug(guest: &mut Guest, slot: &str) -> Result<()> {
    guest.qmp("device_del", &json!({ "id": module_of(slot) }))?;
    let deadline = Instant::now() + UNPLUG_TIMEOUT;
    while modules(guest)?.contains(&module_of(slot)) {
        ensure!(Instant::now() < deadline, "the guest keeps the {slot} memory");
        sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn modules(guest: &mut Guest) -> Result<String> {
    Ok(guest.qmp("query-memory-devices", &json!({}))?.to_string())
}

fn module_of(slot: &str) -> String {
    format!("dimm-{slot}")
}
