//! The cost of a daemon with many disks while they are idle.
//!
//! Every disk has a connected client, with rings started and one request done, as the disk of an
//! idle guest. Then there are no requests for a while, which should cost nothing.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use flowstone_experiment::Figures;
use flowstone_memory::reading::number_after;
use flowstone_testkit::load::CpuSample;
use flowstone_testkit::{Client, ClientOptions, Status};

use crate::disks::{Disks, Server, Who};
use crate::place::Place;

/// Name for `--only`.
pub const NAME: &str = "idle-8";
const DISKS: usize = 8;
/// Longer than shared pollers are looked at after a load.
const QUIET_TIME: Duration = Duration::from_secs(3);
const WATCH: Duration = Duration::from_secs(5);

/// CPU time as a share of one CPU, in percent.
pub const CPU_PERCENT: &str = "cpu_percent";
/// Number of times a thread went to sleep per second, i.e. of wake-ups.
pub const WAKEUPS: &str = "wakeups_per_second";
/// Number of threads.
pub const THREADS: &str = "threads";
/// Resident memory in MiB.
pub const RSS_MIB: &str = "rss_mib";
/// The part of it not shared with files or other processes.
pub const ANONYMOUS_MIB: &str = "anonymous_mib";

/// Measures one server.
pub fn measure(who: Who, place: &Place) -> Result<Figures> {
    watch_idle(place, who, DISKS, WATCH)
}

/// Watches a server of idle disks for `time`.
pub fn watch_idle(place: &Place, who: Who, count: usize, time: Duration) -> Result<Figures> {
    let disks = Disks { sparse: true, ..Disks::on_tmpfs(count) };
    let server = Server::start(place, who, disks, &[place.server_cpu], "")?;
    let clients = server.sockets().iter().map(|socket| use_once(socket));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let figures = watch(server.pid(), time)?;
    drop(clients);
    server.stop()?;
    Ok(figures)
}

/// Watches a server for `time`, a moment after its last use.
fn watch(pid: u32, time: Duration) -> Result<Figures> {
    std::thread::sleep(QUIET_TIME);
    let (began, cpu, slept) = (Instant::now(), CpuSample::take(pid)?, sleeps(pid)?);
    std::thread::sleep(time);
    let seconds = began.elapsed().as_secs_f64();
    let spent = CpuSample::take(pid)?.since(&cpu);
    Ok(vec![
        (CPU_PERCENT, spent.as_secs_f64() / seconds * 100.0),
        (WAKEUPS, (sleeps(pid)? - slept) / seconds),
        (THREADS, fs::read_dir(format!("/proc/{pid}/task"))?.count() as f64),
        (RSS_MIB, figure_of(pid, "status", "VmRSS:")? / 1024.0),
        (ANONYMOUS_MIB, figure_of(pid, "status", "RssAnon:")? / 1024.0),
    ])
}

/// Connects, writes and reads one block, and stays connected.
fn use_once(socket: &Path) -> Result<Client> {
    let mut client = Client::connect(ClientOptions::new(socket))?;
    let written = client.write(0, &[1; 4096])?;
    let read = client.read(0, &mut [0; 4096])?;
    ensure!((written, read) == (Status::Ok, Status::Ok), "{} does not work", socket.display());
    Ok(client)
}

/// Returns the voluntary context switches of all threads so far.
fn sleeps(pid: u32) -> Result<f64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("status")).unwrap_or_default();
        total += number_after(&text, "voluntary_ctxt_switches:").unwrap_or(0);
    }
    Ok(total as f64)
}

/// Returns a figure of `/proc/PID/FILE`: the number after a name.
pub fn figure_of(pid: u32, file: &str, name: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/{file}");
    let figure = number_after(&fs::read_to_string(&path)?, name);
    Ok(figure.with_context(|| format!("no {name} in {path}"))? as f64)
}
