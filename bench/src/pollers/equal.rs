//! One to four disks on one poller and on threads of their own, with the same CPU for all threads.

use std::path::Path;

use anyhow::Result;

use super::server::{Disks, Servers, TMPFS, Who};
use super::{PollersArgs, cpu_us, interleave, plot, ratios, spread};
use crate::sample::median;
use crate::size::thousands;

const CHOICES: [&str; 3] = ["1", "auto", "per-queue"];
const DISKS_MAX: usize = 4;
const DEPTHS: [u16; 2] = [1, 32];
const BYTES: u64 = 64 << 20;

/// Measures all numbers of disks at all depths.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let mut text = format!(
        "Random reads of 4 KiB on tmpfs, each disk with one queue; whatever threads there are, the server has CPU {} and \
         no other one; one client thread, which polls, on CPU {}. {} rounds of {} s; medians, rates with (min-max).\n\n\
         | depth | disks | pollers | IOPS | to `per-queue` | CPU us/IO | p50 us | p99 us |\n\
         |---|---:|---|---:|---:|---:|---:|---:|\n",
        args.server_cpu, args.client_cpu, args.rounds, args.runtime,
    );
    let mut lines = Vec::new();
    for count in 1..=DISKS_MAX {
        let disks = Disks { count, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
        let servers = Servers::start(args, &CHOICES.map(Who::Flowstone), disks)?;
        for depth in DEPTHS {
            let what = format!("{count} disks QD{depth}");
            let rounds = interleave(args, &what, &servers, |load| load.iodepth(depth))?;
            for (server, reports) in servers.0.iter().zip(&rounds) {
                let [rate, least, most] = spread(reports, |it| it.iops);
                let figure = |figure: fn(&_) -> f64| spread(reports, figure)[0];
                let to_own = ratios(reports, &rounds[CHOICES.len() - 1], |it| it.iops);
                text += &format!(
                    "| {depth} | {count} | {} | {} ({}-{}) | {:.2} | {:.2} | {:.1} | {:.1} |\n",
                    server.name,
                    thousands(rate),
                    thousands(least),
                    thousands(most),
                    median(to_own).unwrap_or(f64::NAN),
                    figure(cpu_us),
                    figure(|it| it.latency.p50_us),
                    figure(|it| it.latency.p99_us),
                );
                let name = format!("QD{depth}, {}", server.name.trim_matches('`'));
                lines.push((name, count as f64, rate));
            }
        }
        servers.stop()?;
    }
    args.plot.as_ref().map_or(Ok(()), |path| plot::draw(path, &lines))?;
    Ok(text)
}
