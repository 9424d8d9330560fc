//! `flowstone-bench trace`: the requests of a recorded guest as fast as a server carries them out,
//! on images that begin empty.
//!
//! `flowstone replay --onto` measures an image alone, without a ring and without a peer; here all
//! servers have the same client, and the same trace.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, table};
use flowstone_testkit::client::{ClientOptions, Completion};
use flowstone_testkit::load::CpuSample;
use flowstone_testkit::process::pin_current_thread;
use flowstone_testkit::{Client, Daemon, Request, Status};
use flowstone_trace::{Event, Kind, Trace, read};

use crate::place::{Place, remove};
use crate::run::Run;
use crate::server::of_image;

/// Options.
#[derive(Clone, Debug, Args)]
#[command(mut_arg("rounds", |rounds| rounds.default_value("3")))]
pub struct TraceArgs {
    /// A trace from `flowstone record` or `flowstone-bench evidence --record`.
    #[arg(default_value = "target/evidence/traces/files.csv.zst")]
    trace: PathBuf,
    #[command(flatten)]
    run: Run,
    #[command(flatten)]
    place: Place,
}

/// The server, and the format of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Raw,
    Log,
    Qsd,
}

const PEER: &str = "qemu-storage-daemon, raw";
const SERVERS: [(&str, Who); 3] =
    [("Flowstone, raw", Who::Raw), ("Flowstone, log", Who::Log), (PEER, Who::Qsd)];
/// Whether the discards of the trace are among its requests.
const POINTS: [(&str, bool); 2] = [("with its discards", true), ("without", false)];
const IODEPTH: usize = 32;
const SECTOR_BYTES: u64 = 512;
const REQUEST_BYTES_MAX: u64 = 1 << 20;

/// Carries out the subcommand.
pub fn trace(args: &TraceArgs) -> Result<()> {
    let trace = read(&args.trace)?;
    let name = args.trace.file_name().unwrap_or_default().display();
    let mut experiment = args.run.experiment(&format!("trace {name}"))?;
    experiment.run(args.run.rounds, &POINTS, &SERVERS, |discards, who| {
        measure(args, &trace, *who, *discards)
    })?;
    args.run.publish(render, &experiment)
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    let mut rows = Vec::new();
    for (point, _) in POINTS {
        for (name, _) in SERVERS {
            let [its, peer] = [name, PEER].map(|name| experiment.at(point, name));
            rows.push(vec![
                point.to_owned(),
                name.to_owned(),
                its.count(IOPS),
                its.ratio(peer, IOPS),
                its.cell(CPU_US, 1),
            ]);
        }
    }
    let titles =
        "requests | server | requests/s | to qemu-storage-daemon (95 %) | us of its CPU each";
    table(titles, rows)
}

fn measure(args: &TraceArgs, trace: &Trace, who: Who, discards: bool) -> Result<Figures> {
    let size = trace.size.unwrap_or_else(|| trace.end().next_multiple_of(1 << 20));
    let dir = args.run.dir.canonicalize()?;
    let (image, socket) = (dir.join("trace.img"), dir.join("trace.sock"));
    let format = if who == Who::Log { "log" } else { "raw" };
    args.place.create::<&str>(&image, format, size, &[])?;
    let is_peer = who == Who::Qsd;
    let (command, end) = of_image(&args.place, is_peer, (format, &image), &socket, 1, false)?;
    let mut daemon = args.place.start(command, &socket)?;
    let figures = run(args, trace, &socket, &daemon, discards)?;
    end(&mut daemon)?;
    remove(&image)?;
    Ok(figures)
}

fn run(
    args: &TraceArgs,
    trace: &Trace,
    socket: &Path,
    daemon: &Daemon,
    discards: bool,
) -> Result<Figures> {
    pin_current_thread(&[args.place.client_cpu])?;
    let options = ClientOptions { slots: IODEPTH, ..ClientOptions::new(socket) };
    let mut client = Client::connect(options)?;
    let events = trace.events.iter().filter(|event| match event.kind {
        Kind::Discard => discards,
        Kind::Present => false,
        _ => true,
    });
    let data = vec![0xa5; REQUEST_BYTES_MAX as usize];
    let (before, begin) = (CpuSample::take(daemon.pid())?, Instant::now());
    let mut requests = 0;
    for event in events {
        for (offset, bytes) in parts(event, &client) {
            while client.in_flight(0) == IODEPTH {
                check(&client.wait(0)?)?;
            }
            client.submit(0, &request(event.kind, offset, bytes, &data))?;
            client.notify(0)?;
            requests += 1;
        }
    }
    client.drain(0)?.iter().try_for_each(check)?;
    let seconds = begin.elapsed().as_secs_f64();
    let cpu = CpuSample::take(daemon.pid())?.since(&before).as_secs_f64();
    ensure!(requests > 0, "the trace has no requests");
    let requests = f64::from(requests);
    Ok(vec![(IOPS, requests / seconds), (CPU_US, cpu * 1e6 / requests)])
}

/// Divides the range of an event into requests that the server takes.
fn parts(event: &Event, client: &Client) -> impl Iterator<Item = (u64, u64)> + use<> {
    let longest = match event.kind {
        Kind::Discard => u64::from(client.config().max_discard_sectors) * SECTOR_BYTES,
        Kind::WriteZeroes => u64::from(client.config().max_write_zeroes_sectors) * SECTOR_BYTES,
        _ => REQUEST_BYTES_MAX,
    };
    let longest = longest.max(SECTOR_BYTES);
    let (offset, bytes) = (event.offset, event.bytes);
    // A flush has no bytes, and is one request.
    let parts = bytes.div_ceil(longest).max(1);
    (0..parts).map(move |part| (offset + part * longest, longest.min(bytes - part * longest)))
}

fn request(kind: Kind, offset: u64, bytes: u64, data: &[u8]) -> Request<'_> {
    let sector = offset / SECTOR_BYTES;
    // No server takes longer ranges.
    let range = [(sector, (bytes / SECTOR_BYTES) as u32)];
    match kind {
        Kind::Write => Request::write(sector, &data[..bytes as usize]),
        Kind::Flush => Request::flush(),
        Kind::Discard => Request::discard(&range),
        Kind::WriteZeroes => Request::write_zeroes(&range, true),
        Kind::Read | Kind::Access | Kind::Present => Request::read(sector, bytes as usize),
    }
}

fn check(done: &Completion) -> Result<()> {
    ensure!(done.status == Status::Ok, "a request ended with {:?}", done.status);
    Ok(())
}
