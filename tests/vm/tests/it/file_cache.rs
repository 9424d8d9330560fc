//! The file cache in stock kernels, and its memory agreement with the host.

use std::fs;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use flowstone_testkit::wait_until;
use flowstone_vmtest::framework::artifacts::{Kernel, static_guest};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::qemu::Machine;
use flowstone_vmtest::framework::stats::GuestCacheStats;

/// Makes a disk with the program; returns the program's size, too.
pub(crate) fn program_disk(lab: &Lab) -> Result<(Daemon, usize)> {
    let mut program = fs::read(static_guest()?)?;
    let bytes = program.len();
    program.resize(bytes.next_multiple_of(4096), 0);
    let image = lab.folder().join("program.raw");
    fs::write(&image, program)?;
    Ok((lab.serve_as("program", &image, &["--readonly"])?, bytes))
}

/// Makes a machine with the program on its second disk.
fn machine_with_program(lab: &Lab, daemon: &Daemon) -> Result<(Machine, Daemon, usize)> {
    let (carrier, bytes) = program_disk(lab)?;
    Ok((Lab::machine_of([daemon, &carrier], 2), carrier, bytes))
}

/// Serves a folder of `/dev/vda` at `/mnt`.
fn begin_cache(guest: &mut Guest, program_bytes: usize, options: &str) -> Result<()> {
    guest.run("mkfs.ext4 -q /dev/vda; mkdir -p /srv; mount /dev/vda /srv")?;
    begin_cache_of(guest, "/dev/vdb", program_bytes, options)
}

/// Serves `/srv` at `/mnt`, with the program from a disk.
pub(crate) fn begin_cache_of(
    guest: &mut Guest,
    disk: &str,
    program_bytes: usize,
    options: &str,
) -> Result<()> {
    guest.run(&format!(
        "head -c {program_bytes} {disk} >/bin/flowstone-guest; chmod +x /bin/flowstone-guest
         modprobe fuse; mkdir -p /mnt /run
         flowstone-guest cache --source /srv --mount /mnt {options} >/tmp/cache.log 2>&1 &
         until grep -q serving /tmp/cache.log; do sleep .2; kill -0 $! || {{ cat /tmp/cache.log; exit 1; }}; done"
    ))?;
    Ok(())
}

/// Reads until all files have copies; recently changed files are not copied.
const READ_UNTIL_COPIED: &str = "until flowstone-guest stats /mnt | grep -q \"^cached *$FILES files\"; do cat /mnt/f* >/dev/null; sleep .5; done";

fn guest_cache(daemon: &Daemon) -> Option<GuestCacheStats> {
    daemon.vms().ok()?.first()?.guest_cache
}

fn a_guest_and_its_host_agree(kernel: Kernel) -> Result<()> {
    let Some(lab) = Lab::open_with_or_skip(kernel) else { return Ok(()) };
    let image = lab.image("256M")?;
    let agents = lab.folder().join("agents.sock");
    let agents_text = agents.to_string_lossy();
    let options = ["--guest-agent", &agents_text];
    let mut daemon = lab.serve(&image, &options)?;
    let (machine, mut carrier, bytes) = machine_with_program(&lab, &daemon)?;
    let mut guest = lab.boot_machine(&machine.with_guest_agent(&agents))?;
    begin_cache(&mut guest, bytes, "--memory 64M --epoch 1s")?;
    guest.run("for f in 1 2 3; do head -c 1000000 /dev/urandom >/srv/f$f; done")?;
    guest.run(&format!("FILES=3\n{READ_UNTIL_COPIED}; cat /mnt/f* >/dev/null"))?;
    wait_until("the host knows what the guest has", || {
        guest_cache(&daemon).is_some_and(|cache| cache.used_bytes > 3_000_000 && cache.hits > 0)
    });
    let seen = guest_cache(&daemon).context("a cache")?;
    println!("{kernel:?}: {seen:?}");
    ensure!(seen.grant_bytes.is_some(), "{seen:?}");
    // The host's daemon dies and is restarted: QEMU reconnects by itself.
    daemon.kill()?;
    daemon.restart()?;
    wait_until("a report after the restart", || guest_cache(&daemon).is_some());
    // The guest's daemon dies, and so does a guest: the mount is made again without help.
    guest.run(
        "sum=$(cat /srv/f* | md5sum); kill -9 $(pidof flowstone-guest)
         flowstone-guest cache --source /srv --mount /mnt --epoch 1s >/tmp/again.log 2>&1 &
         until grep -q serving /tmp/again.log; do sleep .2; done
         [ \"$(cat /mnt/f* | md5sum)\" = \"$sum\" ]",
    )?;
    wait_until("a report of the next one", || {
        guest_cache(&daemon).is_some_and(|cache| cache.used_bytes < 3_000_000 && cache.age_s < 60.0)
    });
    guest.run("kill $(pidof flowstone-guest); until umount /srv 2>/dev/null; do sleep .2; done")?;
    guest.power_off()?;
    daemon.terminate()?;
    carrier.terminate()
}

#[test]
fn a_guest_and_its_host_agree_on_linux_6_1() -> Result<()> {
    a_guest_and_its_host_agree(Kernel::Cloud)
}

#[test]
fn a_guest_and_its_host_agree_on_linux_6_12() -> Result<()> {
    a_guest_and_its_host_agree(Kernel::Newer)
}

/// Returns the guest memory that the host has allocated: the pages of its memfd.
fn resident_shared(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix("RssShmem:")).context("RssShmem")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? << 10)
}

fn grant(mut guest: &UnixStream, bytes: u64) -> Result<()> {
    let line = format!("{{\"grant\":{{\"bytes\":{bytes},\"lease_s\":300,\"reason\":\"test\"}}}}");
    writeln!(guest, "{line}").context("grant")
}

/// Memory that a guest frees for its host is returned to the host, if the guest reports free pages.
#[test]
fn memory_that_a_guest_gives_up_is_the_hosts() -> Result<()> {
    const HELD: u64 = 128 << 20;
    let Some(lab) = Lab::open_with_or_skip(Kernel::Newer) else { return Ok(()) };
    let image = lab.image("512M")?;
    let mut daemon = lab.serve(&image, &[])?;
    let (mut machine, mut carrier, bytes) = machine_with_program(&lab, &daemon)?;
    machine.memory_mib = 1024;
    let host = lab.folder().join("host.sock");
    let listener = UnixListener::bind(&host)?;
    let mut guest = lab.boot_machine(&machine.with_guest_agent(&host))?;
    begin_cache(&mut guest, bytes, "--memory 300M --epoch 1s")?;
    let (stream, _) = listener.accept()?;
    grant(&stream, 300 << 20)?;
    guest.run("for f in $(seq 8); do head -c 16777216 /dev/zero >/srv/f$f; done; sync")?;
    guest.run(&format!("FILES=8\n{READ_UNTIL_COPIED}"))?;
    guest.run("echo 3 >/proc/sys/vm/drop_caches")?;
    let before = resident_shared(guest.pid())?;
    grant(&stream, 1 << 20)?;
    let (asked, mut after) = (Instant::now(), before);
    wait_until("nine tenths of it are the host's again", || {
        after = resident_shared(guest.pid()).unwrap_or(before);
        before.saturating_sub(after) >= HELD / 10 * 9
    });
    let (mib, seconds) = ((before - after) >> 20, asked.elapsed().as_secs_f64());
    println!("{mib} MiB of {} came back within {seconds:.1} s", HELD >> 20);
    guest.power_off()?;
    daemon.terminate()?;
    carrier.terminate()
}
