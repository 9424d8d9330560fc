//! A daemon outlives its guests: QEMU ends, another one attaches, the data is there.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::{Format, Lab};

use crate::load::{DISK_CHECKSUM, check_clean, verified_load};

#[test]
#[ignore = "a kill is harder on it"]
fn soak_data_is_there_for_the_next_qemu_after_a_quit() -> Result<()> {
    data_outlives(Format::Raw, Guest::quit)
}

#[test]
fn data_is_there_for_the_next_qemu_after_a_kill() -> Result<()> {
    data_outlives(Format::Raw, Guest::kill)
}

#[test]
fn data_on_a_log_image_is_there_for_the_next_qemu_after_a_kill() -> Result<()> {
    data_outlives(Format::Log, Guest::kill)
}

#[test]
fn a_guest_killed_under_load_leaves_a_disk_the_next_can_use() -> Result<()> {
    killed_under_load(Format::Raw)
}

#[test]
fn a_guest_killed_under_load_leaves_a_log_image_the_next_can_use() -> Result<()> {
    killed_under_load(Format::Log)
}

fn killed_under_load(format: Format) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image_of(format, "64M", &[])?;
    let mut daemon = lab.serve(&image, &["--queues", "2", "--layer", "delay=0-5ms"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    guest.start(&verified_load(32))?;
    guest.wait_for_requests(&daemon, 1500)?;
    guest.kill()?;

    let mut next = lab.boot(&daemon, 2)?;
    next.run(&verified_load(8))?;
    next.power_off()?;
    daemon.terminate()?;
    check_clean(&image)
}

fn data_outlives(format: Format, end: fn(Guest) -> Result<()>) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else {
        return Ok(());
    };
    let image = lab.image_of(format, "64M", &[])?;
    let mut daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut first = lab.boot(&daemon, 2)?;
    first.run("dd if=/dev/urandom of=/dev/vda oflag=direct bs=1M count=24")?;
    let written = first.run(DISK_CHECKSUM)?;
    end(first)?;

    let mut second = lab.boot(&daemon, 2)?;
    ensure!(second.run(DISK_CHECKSUM)? == written, "the second guest reads something else");
    second.power_off()?;
    daemon.terminate()
}
