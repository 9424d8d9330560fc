//! The demo's chapters: the steps done with the guest and the daemon.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::daemon::{Daemon, flowstone};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::log_image::LogCounters;
use flowstone_vmtest::framework::qemu::Machine;
use flowstone_vmtest::framework::tools::host;

use crate::report::{fact, mebibytes, request_table, space_table, step, write_shape};
use crate::scripts;

/// Requests done between two kills.
const REQUESTS_BETWEEN_KILLS: u64 = 1500;
/// Time until a killed daemon is restarted.
const AWAY: Duration = Duration::from_millis(500);
const BIG_FILE_BYTES: u64 = 64 << 20;
const IDLE: Duration = Duration::from_secs(1);
/// Options that delay and reorder completions.
const DELAYED: [&str; 4] = ["--queues", "2", "--layer", "delay=0-5ms"];

/// Boots the guest.
pub fn boot(lab: &Lab, machine: &Machine) -> Result<Guest> {
    let mut guest = None;
    step("boots from firmware to shell", || {
        guest = Some(lab.boot_machine(machine)?);
        Ok(String::new())
    })?;
    Ok(guest.expect("the step before succeeded"))
}

/// Fills the guest's disk and frees some of it.
pub fn first_life(guest: &mut Guest, daemon: &Daemon) -> Result<()> {
    quiet_step(guest, "mkfs.ext4 on the whole disk", scripts::MAKE_FILE_SYSTEM)?;
    quiet_step(guest, "mount", scripts::MOUNT)?;
    quiet_step(guest, "40 files with SHA-256 sums", scripts::WRITE_FILES)?;
    quiet_step(
        guest,
        "fio: 8192 random 4 KiB writes, read back, CRC32C",
        &scripts::fio_verified("/mnt"),
    )?;
    quiet_step(guest, "fio: 200 writes, fsync after each", &scripts::fsync_load("/mnt"))?;
    give_back(guest, daemon, "/mnt")?;
    quiet_step(guest, "unmount", scripts::UNMOUNT)
}

/// Writes and deletes a large file, and shows that the host has its space again.
fn give_back(guest: &mut Guest, daemon: &Daemon, folder: &str) -> Result<()> {
    quiet_step(guest, "a file of 64 MiB", &scripts::write_big_file(folder))?;
    let before = daemon.stats()?;
    step("removed, fstrim", || {
        guest.run(&scripts::trim(folder))?;
        let (was, goal) = (before.allocated_bytes, BIG_FILE_BYTES * 9 / 10);
        daemon.wait_for("space for the host", |now| now.allocated_bytes + goal <= was)?;
        let back = was - daemon.stats()?.allocated_bytes;
        Ok(format!("{:.0} MiB back to the host", mebibytes(back)))
    })?;
    space_table(&before, &daemon.stats()?)
}

/// Reboots, and checks that all files are there.
pub fn second_life(guest: &mut Guest) -> Result<()> {
    step("reboots through the firmware", || guest.reboot().map(|()| String::new()))?;
    quiet_step(guest, "mount", scripts::MOUNT)?;
    step("SHA-256 sums", || {
        let count = guest.run(scripts::CHECK_FILES)?;
        ensure!(count.trim() == "40", "{} of 40 files are right", count.trim());
        Ok("40 of 40 files are right".into())
    })?;
    let again = scripts::fio_verify_only("/mnt");
    quiet_step(guest, "fio reads and verifies its 8192 blocks again", &again)
}

/// Shows requests, latencies, notifications, processor time.
pub fn count(daemon: &Daemon) -> Result<()> {
    let stats = daemon.stats()?;
    let cpu = daemon.cpu_time()?;
    request_table(&stats);
    let requests = stats.all_requests();
    let each = |count: u64| count as f64 / requests as f64;
    println!();
    fact("kicks", format!("{:.2} per request, from guest to daemon", each(stats.total.kicks)));
    fact("calls", format!("{:.2} per request, from daemon to guest", each(stats.total.calls)));
    let cpu_each_us = cpu.as_secs_f64() * 1e6 / requests as f64;
    fact(
        "CPU",
        format!("{:.2} s for {requests} requests: {cpu_each_us:.0} µs each", cpu.as_secs_f64()),
    );
    sleep(IDLE);
    let idle = daemon.cpu_time()?.saturating_sub(cpu);
    fact("idle", format!("{:.2} s of CPU in one second", idle.as_secs_f64()));
    Ok(())
}

/// Does the same on a log image, and shows the writes that reach the host. Space is freed once
/// there are no writes for a while.
pub fn log_image(guest: &mut Guest, daemon: &mut Daemon, image: &Path) -> Result<()> {
    quiet_step(guest, "mkfs.ext4 on the second disk, mount", scripts::PREPARE_LOG_DISK)?;
    let verified = scripts::fio_verified("/log");
    quiet_step(guest, "fio: 8192 random 4 KiB writes, read back, CRC32C", &verified)?;
    let synced = scripts::fsync_load("/log");
    quiet_step(guest, "fio: 200 writes, fsync after each", &synced)?;
    let guest_side = daemon.stats()?;
    let mut counters = None;
    // In an orderly way, so that the image's own counters are up to date.
    step("its daemon is stopped (SIGTERM) and started again, with random delays", || {
        daemon.terminate()?;
        counters = Some(LogCounters::read(image)?);
        daemon.restart_with(&DELAYED)?;
        Ok(String::new())
    })?;
    println!();
    write_shape(&guest_side, &counters.expect("the step before succeeded"));
    println!();
    give_back(guest, daemon, "/log")
}

/// Kills both daemons three times while requests complete out of order.
pub fn survive(guest: &mut Guest, daemon: &mut Daemon, log_daemon: &mut Daemon) -> Result<()> {
    step("the first daemon too starts again with random delays of 0-5 ms", || {
        daemon.terminate()?;
        daemon.restart_with(&DELAYED)?;
        Ok(String::new())
    })?;
    step("kill -9 of both under load, back 0.5 s later, three times", || {
        guest.start(scripts::LOAD)?;
        for _ in 0..3 {
            guest.wait_for_requests(daemon, REQUESTS_BETWEEN_KILLS)?;
            guest.wait_for_requests(log_daemon, REQUESTS_BETWEEN_KILLS)?;
            daemon.kill()?;
            log_daemon.kill()?;
            sleep(AWAY);
            daemon.restart()?;
            log_daemon.restart()?;
        }
        Ok(String::new())
    })?;
    step("the load goes on; all blocks verify", || guest.finish().map(|_| String::new()))?;
    quiet_step(guest, "no error in the guest's kernel log", scripts::NO_ERRORS_LOGGED)
}

/// Ends both sides in an orderly way, and checks the image on the host.
pub fn finish(
    mut guest: Guest,
    daemons: [&mut Daemon; 2],
    image: &Path,
    log_image: &Path,
) -> Result<()> {
    quiet_step(&mut guest, "unmount", scripts::UNMOUNT_BOTH)?;
    quiet_step(&mut guest, "e2fsck in the guest, both disks: clean", scripts::CHECK_FILE_SYSTEMS)?;
    step("power off", || guest.power_off().map(|()| String::new()))?;
    step("the daemons drain, flush and exit with 0", || {
        daemons.into_iter().try_for_each(Daemon::terminate).map(|()| String::new())
    })?;
    step("flowstone check of the log image, with all its checksums: clean", || {
        flowstone(&["check", "--data", &log_image.to_string_lossy()]).map(|_| String::new())
    })?;
    step("e2fsck on the host, of the image: clean", || {
        host(Command::new("e2fsck").arg("-fn").arg(image)).map(|_| String::new())
    })
}

fn quiet_step(guest: &mut Guest, what: &str, script: &str) -> Result<()> {
    step(what, || guest.run(script).map(|_| String::new()))
}
