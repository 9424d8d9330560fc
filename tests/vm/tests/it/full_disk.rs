//! A disk that stays nearly full while all of it is overwritten repeatedly: a log image has to
//! clean continuously, and no block may be lost.

use std::time::Instant;

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::lab::{Format, Lab};
use flowstone_vmtest::framework::log_image::LogCounters;

use crate::disk_errors;
use crate::load::{DISK_CHECKSUM, as_raw, check_clean, image_checksum};
use crate::soak::soak_deadline;

const DISK_MIB: u32 = 40;
/// More than 90 % of the disk.
const FILLED_MIB: u32 = 38;
/// With fewer rounds there is little to clean.
const ROUNDS_MIN: u64 = 5;

#[test]
fn a_full_log_image_survives_random_overwrites_and_cleaning() -> Result<()> {
    overwritten_until(Instant::now())
}

#[test]
#[ignore = "runs for SOAK_MINUTES"]
fn soak_random_overwrites_of_a_full_log_image() -> Result<()> {
    overwritten_until(soak_deadline()?)
}

fn overwritten_until(deadline: Instant) -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let size = format!("{DISK_MIB}M");
    let image = lab.image_of(Format::Log, &size, &["--segment", "256K", "--reserve", "8"])?;
    let mut daemon = lab.serve(&image, &["--queues", "2", "--pollers", "per-queue"])?;
    let mut guest = lab.boot(&daemon, 2)?;
    guest.run(&write_all("write", 0))?;
    let mut round = 1;
    while round < ROUNDS_MIN || Instant::now() < deadline {
        guest.run(&write_all("randwrite", round))?;
        round += 1;
    }
    let seen_by_guest = guest.run(DISK_CHECKSUM)?;
    disk_errors::none_logged(&mut guest)?;
    guest.power_off()?;
    daemon.terminate()?;

    check_clean(&image)?;
    let counters = LogCounters::read(&image)?;
    println!("{round} rounds, {counters:?}");
    let filled_blocks = u64::from(FILLED_MIB) * 256;
    ensure!(counters.live_blocks >= filled_blocks, "not full: {counters:?}");
    ensure!(counters.relocated_blocks > filled_blocks, "it hardly cleaned: {counters:?}");
    ensure!(seen_by_guest == image_checksum(&as_raw(&image)?)?, "host and guest disagree");
    Ok(())
}

/// Writes every block of the filled part once, in the round's order and with its content; then
/// reads and verifies all.
fn write_all(how: &str, round: u64) -> String {
    let half = FILLED_MIB / 2;
    format!(
        "fio --name=round --filename=/dev/vda --numjobs=2 --offset_increment={half}M \
         --size={half}M --rw={how} --bs=4k --ioengine=libaio --iodepth=16 --direct=1 \
         --randseed={round} --verify=crc32c --verify_fatal=1 --group_reporting --minimal"
    )
}
