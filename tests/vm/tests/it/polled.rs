//! A guest that polls for completions (io_uring, IOPOLL) gets no interrupts, and sends no
//! notifications to a polling daemon: counts of both sides, with and without polling (S2.1, S2.3).

use anyhow::{Result, bail, ensure};
use flowstone_vmtest::framework::daemon::Daemon;
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use flowstone_vmtest::framework::stats::DiskStats;

const QUEUES: u16 = 2;
/// The last queue is for polled requests.
const POLL_QUEUE: &str = "virtio_blk.poll_queues=1";
const ALWAYS: [&str; 6] = ["--queues", "2", "--pollers", "1", "--poll", "always"];
const AUTO: [&str; 4] = ["--queues", "2", "--pollers", "1"];
const FIRST: &str = "--filename=/dev/vda --ioengine=io_uring --hipri=1 --size=64k --rw=write";
/// 2048 writes, read back and verified.
const LOAD: &str = "--filename=/dev/vda --ioengine=io_uring --iodepth=4 --size=8M --rw=randwrite \
                    --verify=crc32c --verify_fatal=1";
/// Kicks or calls of a load that needs none for its requests. One of each may come with a queue's
/// start, and one of each per 65,536 requests, when an unchanged event index is passed.
const HANDFUL: u64 = 4;

/// The cost of a load of 4 KiB requests.
#[derive(Clone, Copy, Debug)]
struct Cost {
    requests: u64,
    /// The part of them on the last queue.
    last_queue: u64,
    /// Notifications counted by the daemon: only a queue that goes to sleep counts them.
    kicks: u64,
    /// Notifications sent by the guest.
    notifications: u64,
    /// Interrupts sent by the daemon.
    calls: u64,
    /// Interrupts counted by the guest.
    interrupts: u64,
}

#[test]
fn polled_requests_cost_neither_notifications_nor_interrupts() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image("32M")?;
    let mut daemon = lab.serve(&image, &ALWAYS)?;
    let machine = Lab::machine(&daemon, QUEUES).with_kernel_options(POLL_QUEUE);
    let mut guest = lab.boot_machine(&machine)?;
    guest.run("[ $(cat /sys/module/virtio_blk/parameters/poll_queues) = 1 ]")?;
    guest.run(COUNT_NOTIFICATIONS)?;
    // Interrupts of a queue's first request are not part of the counted loads.
    counted_by(&mut guest, FIRST)?;

    let polled = cost(&daemon, &mut guest, &format!("{LOAD} --hipri=1"))?;
    println!("guest and daemon poll: {polled:?}");
    let woken = cost(&daemon, &mut guest, LOAD)?;
    println!("the daemon polls: {woken:?}");
    restart(&mut daemon, &AUTO)?;
    counted_by(&mut guest, FIRST)?;
    let auto = cost(&daemon, &mut guest, &format!("{LOAD} --hipri=1"))?;
    println!("the guest polls, the daemon while it pays: {auto:?}");

    for cost in [polled, auto] {
        ensure!(cost.last_queue >= 4096, "not on the poll queue: {cost:?}");
        ensure!(cost.requests - cost.last_queue < 64, "on another queue: {cost:?}");
        ensure!(cost.calls <= HANDFUL, "the daemon sends interrupts: {cost:?}");
        ensure!(cost.interrupts <= HANDFUL, "the guest has interrupts: {cost:?}");
    }
    for cost in [polled, woken] {
        ensure!(cost.notifications <= HANDFUL, "the daemon asks for notifications: {cost:?}");
        ensure!(cost.kicks <= HANDFUL, "{cost:?}");
    }
    ensure!(auto.kicks.abs_diff(auto.notifications) <= HANDFUL, "{auto:?}");
    ensure!(woken.last_queue == 0 && woken.requests >= 4096, "on the poll queue: {woken:?}");
    ensure!(woken.calls.min(woken.interrupts) > woken.requests / 10, "{woken:?}");
    guest.power_off()?;
    daemon.terminate()
}

/// Interrupts of a deep load without polling in the guest: the most that interrupt moderation could
/// save. By hand: `cargo test -p flowstone-vmtest --test it deep_load -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn interrupts_of_a_deep_load() -> Result<()> {
    const ON_A_FILE: &str = "--filename=/mnt/file --ioengine=libaio --size=16M";
    const DEEP: &str = "--iodepth=32 --numjobs=4 --offset_increment=16M";
    const SHALLOW: &str = "--iodepth=1";
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let image = lab.image("256M")?;
    let mut daemon = lab.serve(&image, &["--queues", "2"])?;
    let mut guest = lab.boot(&daemon, QUEUES)?;
    guest.run(COUNT_NOTIFICATIONS)?;
    guest.run(
        "mkfs.ext4 -q /dev/vda; mount /dev/vda /mnt
         dd if=/dev/zero of=/mnt/file bs=1M count=64 oflag=direct 2>/dev/null; sync",
    )?;
    let own = "--pollers per-queue";
    let polls =
        ["--poll auto", "--poll never", "--poll always"].map(|poll| format!("{own} {poll}"));
    for options in polls.iter().map(String::as_str).chain(["--pollers 1"]) {
        let words: Vec<&str> = options.split_whitespace().collect();
        restart(&mut daemon, &[&["--queues", "2"][..], &words].concat())?;
        for (rw, depth) in [("randread", DEEP), ("randwrite", DEEP), ("randread", SHALLOW)] {
            let cost = cost(&daemon, &mut guest, &format!("{ON_A_FILE} --rw={rw} {depth}"))?;
            println!("{options:34} {rw:9} {depth} {cost:?}");
            // A commit of the file system may come between two readings.
            ensure!(cost.requests >= 4096 && cost.interrupts <= cost.calls + HANDFUL, "{cost:?}");
        }
    }
    guest.run("umount /mnt")?;
    guest.power_off()?;
    daemon.terminate()
}

/// Starts the daemon with other options, and waits until the guest has reconnected.
fn restart(daemon: &mut Daemon, options: &[&str]) -> Result<()> {
    daemon.terminate()?;
    daemon.restart_with(options)?;
    daemon.wait_for("queues", |stats| stats.queue_count() == usize::from(QUEUES))
}

/// Runs a load between two readings of the counters of both sides.
fn cost(daemon: &Daemon, guest: &mut Guest, load: &str) -> Result<Cost> {
    let before = daemon.stats()?;
    let (notifications, interrupts) = counted_by(guest, load)?;
    let after = daemon.stats()?;
    let last_queue =
        |stats: &DiskStats| stats.queues.last().map_or(0, |queue| queue.all_requests());
    Ok(Cost {
        requests: after.all_requests() - before.all_requests(),
        last_queue: last_queue(&after) - last_queue(&before),
        kicks: after.total.kicks - before.total.kicks,
        notifications,
        calls: after.total.calls - before.total.calls,
        interrupts,
    })
}

/// Counts notifications of all virtio devices from now on, by a probe in the driver of their bus.
const COUNT_NOTIFICATIONS: &str = "\
    mount -t tracefs tracefs /sys/kernel/tracing
    echo p:notify vp_notify >/sys/kernel/tracing/kprobe_events
    echo 1 >/sys/kernel/tracing/events/kprobes/notify/enable";

/// Returns the guest's counts during a load: notifications, and interrupts of the disk's queues on
/// all its processors. One script does all of it without output, so that other devices are idle.
fn counted_by(guest: &mut Guest, load: &str) -> Result<(u64, u64)> {
    let output = guest.run(&format!(
        "look() {{
            cat /sys/kernel/tracing/kprobe_profile >/tmp/notifications.$1
            grep 'virtio[0-9]*-req' /proc/interrupts >/tmp/interrupts.$1
         }}
         sleep 0.1 # the notification of this script's arrival
         look before
         fio --name=load --bs=4k --direct=1 --minimal {load} >/tmp/fio || {{ cat /tmp/fio; exit 1; }}
         look after
         for when in before after; do
            awk '{{ print $2 }}' /tmp/notifications.$when
            awk '{{ for (i = 2; i <= NF; i++) if ($i ~ /^[0-9]+$/) sum += $i }} END {{ print sum }}' \
                /tmp/interrupts.$when
         done"
    ))?;
    let counts: Vec<u64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let &[notifications, interrupts, notifications_after, interrupts_after] = &counts[..] else {
        bail!("the guest counted {output:?}");
    };
    // The script channel sends notifications, too.
    ensure!(notifications > 0, "the guest does not count notifications: {output:?}");
    Ok((notifications_after - notifications, interrupts_after - interrupts))
}
