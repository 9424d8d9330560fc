//! A host with two NUMA nodes: the guest is the host, and runs flowstone and a driver near each
//! node.

use anyhow::{Context, Result, ensure};
use flowstone_vmtest::framework::guest::Guest;
use flowstone_vmtest::framework::lab::Lab;
use serde_json::Value;

use crate::devices::tools_image;

/// Processors of each node, as the kernel writes them.
const CPUS: [&str; 2] = ["0-1", "2-3"];
const DISK_MIB: u64 = 8;
const CACHE_MIB: u64 = 32;
/// Blocks that a driver's reads bring into the cache.
const BLOCKS: u64 = DISK_MIB * 256;

/// `drive` connects a driver on these processors, which reads the whole disk and stays.
const BEGIN: &str = "
    mkdir -p /tools /tmp/on
    mount -o ro /dev/vda /tools
    cd /tmp/on
    for disk in 0 1; do
        head -c $((DISK_MIB << 20)) /dev/urandom >$disk.raw
        mkfifo go-$disk
    done";
const DRIVE: &str = "
    cd /tmp/on
    drive() {
        : >$1.said  # the driver before said that it has read, too
        taskset -c $2 /tools/device-load $1.sock held <go-$1 >$1.said 2>&1 &
        driver=$!
        sleep 1000 >go-$1 2>/dev/null &
        until grep -q 'has read' $1.said; do kill -0 $driver || { cat $1.said log; exit 1; }; sleep .1; done
    }";
const END: &str = "
    kill $(pidof sleep); while pidof device-load >/dev/null; do sleep .1; done
    kill $(cat pid); while kill -0 $(cat pid) 2>/dev/null; do sleep .1; done";

#[test]
fn queues_and_cached_blocks_are_near_their_guests_memory() -> Result<()> {
    let Some(lab) = Lab::open_or_skip() else { return Ok(()) };
    let mut tools = lab.serve_as("tools", &tools_image(&lab)?, &["--readonly"])?;
    let mut guest = lab.boot_machine(&Lab::machine_of([&tools], 4).with_nodes(2))?;
    guest.run(&BEGIN.replace("DISK_MIB", &DISK_MIB.to_string()))?;
    for pollers in ["auto", "per-queue"] {
        serve(&mut guest, pollers)?;
        let mut before = [0, 0];
        for node in [1, 0] {
            guest.run(&format!("{DRIVE}\ndrive {node} {}", CPUS[node]))?;
            let frames = frames_by_node(&mut guest)?;
            let more = [0, 1].map(|at| u64::saturating_sub(frames[at], before[at]));
            println!("pollers {pollers}, node {node}: {more:?} frames more of {BLOCKS} blocks");
            ensure!(more[node] * 10 > BLOCKS * 9, "{more:?} for node {node}");
            ensure!(more[1 - node] * 20 < BLOCKS, "{more:?} for node {node}");
            before = frames;
        }
        placed_by_node(&mut guest, pollers)?;
        guest.run(&format!("cd /tmp/on\n{END}"))?;
    }
    guest.power_off()?;
    tools.terminate()
}

/// Starts a daemon for both disks.
fn serve(guest: &mut Guest, pollers: &str) -> Result<()> {
    let disks = [0, 1].map(|disk| {
        format!("[[disk]]\nname = '{disk}'\nimage = '{disk}.raw'\nsocket = '{disk}.sock'\n")
    });
    let head = format!("pollers = '{pollers}'\ncache = '{CACHE_MIB}M'\ncontrol = 'control.sock'\n");
    guest.run(&format!(
        "cd /tmp/on
         cat >disks.toml <<'END'\n{head}{}END
         /tools/flowstone serve --config disks.toml >log 2>&1 &
         echo $! >pid
         until [ $(grep -c '^listening on' log) = 2 ]; do kill -0 $! || {{ cat log; exit 1; }}; sleep .1; done",
        disks.concat()
    ))?;
    Ok(())
}

/// Returns how many of the cache's frames lie on each node.
fn frames_by_node(guest: &mut Guest) -> Result<[u64; 2]> {
    let maps = guest.run("cat /proc/$(cat /tmp/on/pid)/maps")?;
    let cache = maps.lines().find_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let [from_at, to_at] = [from, to].map(|it| u64::from_str_radix(it, 16).ok());
        (to_at? - from_at? == CACHE_MIB << 20).then_some(from)
    });
    let cache = cache.with_context(|| format!("the mapping of the cache in\n{maps}"))?;
    let placed = guest.run(&format!("grep ^{cache} /proc/$(cat /tmp/on/pid)/numa_maps"))?;
    let on = |node: usize| {
        let pages =
            placed.split_whitespace().find_map(|word| word.strip_prefix(&format!("N{node}=")));
        pages.map_or(Ok(0), str::parse)
    };
    Ok([on(0)?, on(1)?])
}

/// Checks what `stats` reports, and the processors that the kernel allows the threads.
fn placed_by_node(guest: &mut Guest, pollers: &str) -> Result<()> {
    let report =
        guest.run("/tools/flowstone stats --control /tmp/on/control.sock --numa --json")?;
    let report: Value = serde_json::from_str(&report)?;
    let nodes = [0, 1].map(|node| report["nodes"][node]["cpus"].as_str() == Some(CPUS[node]));
    ensure!(nodes == [true, true], "{report}");
    let disks = report["disks"].as_array().context("disks")?;
    ensure!(disks.len() == 2, "{report}");
    for disk in disks {
        ensure!(disk["name"].as_str() == Some(&disk["home"].to_string()), "{report}");
    }
    let queues: Vec<_> =
        report["pollers"].as_array().context("pollers")?.iter().map(|it| &it["queues"]).collect();
    let threads = guest.run(
        "for thread in /proc/$(cat /tmp/on/pid)/task/*; do
             echo $(cat $thread/comm) $(sed -n 's/Cpus_allowed_list:\t*//p' $thread/status)
         done",
    )?;
    let names = if pollers == "auto" {
        ensure!(queues == [1, 1], "{report}");
        ["poller0", "poller1"]
    } else {
        ["0/q0", "1/q0"]
    };
    for (name, cpus) in names.into_iter().zip(CPUS) {
        ensure!(threads.contains(&format!("{name} {cpus}\n")), "{name} in\n{threads}");
    }
    Ok(())
}
