//! One queue on one thread, on two, and in the form chosen by `--pipeline auto`.

use std::path::Path;

use anyhow::Result;

use super::server::{Disks, Servers, TMPFS, Who};
use super::{PollersArgs, cpu_us, interleave, ratios, spread};
use crate::sample::interval;
use crate::size::thousands;

const FORMS: [&str; 3] = ["fused", "split", "auto"];
const DEPTHS: [u16; 3] = [1, 32, 128];
const BYTES: u64 = 64 << 20;

/// Measures each form at all depths, on the server's CPU and on both.
pub fn measure(args: &PollersArgs) -> Result<String> {
    let mut text = format!(
        "Random reads of 4 KiB of one disk on tmpfs, one queue on threads of its own. One client thread, which polls, on CPU {}; \
         {} rounds of {} s; medians, rates with (min-max). To reach: `auto` 0.97 of the better form.\n\n\
         | server's CPUs | depth | `--pipeline` | IOPS | to `fused` (95 %) | CPU us/IO | p50 us | p99 us |\n\
         |---|---:|---|---:|---|---:|---:|---:|\n",
        args.client_cpu, args.rounds, args.runtime,
    );
    let disks = Disks { count: 1, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
    let (one, both) = ([args.server_cpu], [args.server_cpu, args.client_cpu]);
    for (cpus, named) in [(&one[..], "its own"), (&both[..], "and the client's")] {
        let servers = Servers::start_on(args, &FORMS.map(Who::Pipeline), disks, cpus)?;
        for depth in DEPTHS {
            let what = format!("{named} QD{depth}");
            let rounds = interleave(args, &what, &servers, |load| load.iodepth(depth))?;
            for (server, reports) in servers.0.iter().zip(&rounds) {
                let [rate, least, most] = spread(reports, |it| it.iops);
                let figure = |figure: fn(&_) -> f64| spread(reports, figure)[0];
                text += &format!(
                    "| {named} | {depth} | {} | {} ({}-{}) | {} | {:.2} | {:.1} | {:.1} |\n",
                    server.name,
                    thousands(rate),
                    thousands(least),
                    thousands(most),
                    interval(ratios(reports, &rounds[0], |it| it.iops)),
                    figure(cpu_us),
                    figure(|it| it.latency.p50_us),
                    figure(|it| it.latency.p99_us),
                );
            }
        }
        servers.stop()?;
    }
    Ok(text)
}
