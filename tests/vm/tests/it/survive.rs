//! A guest under load survives any end of its daemon.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Result;
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::disk_errors;
use crate::load::{check_sound, verified_load};
use crate::soak::{seeded, soak_deadline};

const QUEUES: u16 = 2;
/// Longest time from the start of the queues until QEMU has set up a reconnected disk.
const HANDSHAKE_ENDS: Duration = Duration::from_millis(100);
/// Random delays: requests complete out of order, so only the in-flight log tells a restarted
/// daemon which are undone.
const OUT_OF_ORDER: [&str; 6] =
    ["--queues", "2", "--pollers", "per-queue", "--layer", "delay=0-5ms"];
/// Requests between two ends; three times this is far less than the load.
const REQUESTS_BETWEEN_ENDS: u64 = 1500;
const AWAY: Duration = Duration::from_millis(500);
const LOAD_MEGABYTES_PER_JOB: u32 = 24;

#[test]
fn guest_survives_three_kills_while_requests_complete_out_of_order() -> Result<()> {
    survives_three_ends(Format::Raw, Daemon::kill)
}

#[test]
fn guest_on_a_log_image_survives_three_kills_while_requests_complete_out_of_order() -> Result<()> {
    survives_three_ends(Format::Log, Daemon::kill)
}

#[test]
fn guest_on_a_qcow2_image_survives_three_kills_while_requests_complete_out_of_order() -> Result<()>
{
    survives_three_ends(Format::Qcow2, Daemon::kill)
}

#[test]
fn sigterm_under_load_drains_and_the_guest_continues_after_restart() -> Result<()> {
    survives_three_ends(Format::Raw, Daemon::terminate)
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_random_ends_under_load() -> Result<()> {
    random_ends(Format::Raw)
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_random_ends_under_load_of_a_log_image() -> Result<()> {
    random_ends(Format::Log)
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_random_ends_under_load_of_a_qcow2_image() -> Result<()> {
    random_ends(Format::Qcow2)
}

fn random_ends(format: Format) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let deadline = soak_deadline()?;
    let mut random = seeded();
    let image = lab.image_of(format, "128M", &[])?;
    let mut daemon = lab.serve(&image, &OUT_OF_ORDER)?;
    let mut guest = lab.boot(&daemon, QUEUES)?;
    while Instant::now() < deadline {
        guest.start(&verified_load(LOAD_MEGABYTES_PER_JOB))?;
        guest.wait_for_requests(&daemon, random.u64(1..REQUESTS_BETWEEN_ENDS))?;
        for _ in 0..random.u32(1..6) {
            sleep(Duration::from_millis(random.u64(0..1500)));
            let end = if random.bool() { Daemon::kill } else { Daemon::terminate };
            end(&mut daemon)?;
            sleep(Duration::from_millis(random.u64(0..1500)));
            daemon.restart()?;
            wait_for_monitor(&daemon)?;
        }
        guest.finish()?;
        disk_errors::none_logged(&mut guest)?;
    }
    guest.power_off()?;
    daemon.terminate()?;
    check_sound(&image)
}

/// Waits until the monitor has set up its disk again. QEMU before 9.1 never does so if the daemon
/// ends meanwhile: it stays connected then, and sends nothing (docs/operating.md).
fn wait_for_monitor(daemon: &Daemon) -> Result<()> {
    daemon.wait_for("queues", |stats| stats.queue_count() == usize::from(QUEUES))?;
    sleep(HANDSHAKE_ENDS);
    Ok(())
}

fn survives_three_ends(format: Format, end: fn(&mut Daemon) -> Result<()>) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image_of(format, "128M", &[])?;
    let mut daemon = lab.serve(&image, &OUT_OF_ORDER)?;
    let mut guest = lab.boot(&daemon, QUEUES)?;

    guest.start(&verified_load(LOAD_MEGABYTES_PER_JOB))?;
    for _ in 0..3 {
        guest.wait_for_requests(&daemon, REQUESTS_BETWEEN_ENDS)?;
        end(&mut daemon)?;
        sleep(AWAY);
        daemon.restart()?;
    }
    guest.finish()?;

    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()?;
    check_sound(&image)
}
