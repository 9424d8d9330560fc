//! One queue on one thread, on two, and in the form chosen by `--pipeline auto`.

use std::path::Path;

use anyhow::Result;

use super::server::{Disks, Servers, TMPFS, Who};
use super::{PollersArgs, cells, interleave};
use crate::experiment::{Experiment, table};

const FORMS: [&str; 3] = ["fused", "split", "auto"];
const DEPTHS: [u16; 3] = [1, 32, 128];
const BYTES: u64 = 64 << 20;

/// Measures each form at all depths, on the server's CPU and on both.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let disks = Disks { count: 1, bytes: BYTES, sparse: false, dir: Path::new(TMPFS) };
    let both = [args.place.server_cpu, args.place.client_cpu];
    let mut rows = Vec::new();
    for (cpus, named) in [(&both[..1], "its own"), (&both[..], "and the client's")] {
        let servers = Servers::start_on(args, &FORMS.map(Who::Pipeline), disks, cpus)?;
        for depth in DEPTHS {
            let point = format!("forms, {named} QD{depth}");
            interleave(args, &point, &servers, experiment, |load| load.iodepth(depth))?;
            rows.extend(servers.0.iter().map(|server| {
                let row = [named.to_owned(), depth.to_string(), server.name.clone()];
                let cells = cells(experiment, &point, &server.name, &servers.0[0].name);
                [&row[..], &cells].concat()
            }));
        }
        servers.stop()?;
    }
    let titles = "server's CPUs | depth | `--pipeline` | IOPS | to `fused` (95 %) | CPU us/IO | \
                  p50 us | p99 us";
    Ok(format!(
        "Random reads of 4 KiB of one disk on tmpfs, one queue on threads of its own. One client \
         thread, which polls, on CPU {}; {} rounds of {} s; medians, rates with their 95 % \
         intervals. To reach: `auto` 0.97 of the better form.\n\n{}",
        args.place.client_cpu,
        args.run.rounds,
        args.runtime,
        table(titles, rows),
    ))
}
