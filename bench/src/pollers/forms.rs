//! One queue on one thread, on two, and in the form chosen by `--pipeline auto`.

use anyhow::Result;
use flowstone_experiment::{Experiment, table};

use super::{PollersArgs, cells, interleave};
use crate::disks::{Disks, Servers, Who};

const FORMS: [&str; 3] = ["fused", "split", "auto"];
const DEPTHS: [u16; 3] = [1, 32, 128];
/// Beginning of the points' names.
const PREFIX: &str = "forms, ";

/// Measures each form at all depths, on the server's CPU and on both.
pub fn measure(args: &PollersArgs, experiment: &mut Experiment) -> Result<String> {
    let disks = Disks::on_tmpfs(1);
    let both = [args.place.server_cpu, args.place.client_cpu];
    for (cpus, named) in [(&both[..1], "its own CPU"), (&both[..], "the client's CPU, too")] {
        let servers = Servers::start_on(&args.place, &FORMS.map(Who::Pipeline), disks, cpus)?;
        for depth in DEPTHS {
            let point = format!("{PREFIX}QD{depth}, {named}");
            interleave(args, &point, &servers, experiment, |load| load.iodepth(depth))?;
        }
        servers.stop()?;
    }
    Ok(format!(
        "Random reads of 4 KiB of one disk on tmpfs, one queue on threads of its own. One client \
         thread, which polls, on CPU {}; {} rounds of {} s; medians, rates with their 95 % \
         intervals. To reach: `auto` 0.97 of the better form.",
        args.place.client_cpu, args.run.rounds, args.runtime,
    ))
}

/// Renders the table.
pub fn render(experiment: &Experiment) -> String {
    rows_of(experiment, PREFIX)
}

/// Renders the points whose names begin so, each with its forms.
pub fn rows_of(experiment: &Experiment, prefix: &str) -> String {
    let mut rows = Vec::new();
    for point in experiment.points() {
        let Some(load) = point.strip_prefix(prefix) else { continue };
        let forms = experiment.contenders(point);
        rows.extend(forms.iter().map(|form| {
            let row = [load, form].map(str::to_owned);
            [&row[..], &cells(experiment, point, form, forms[0])].concat()
        }));
    }
    let titles = "load | `--pipeline` | IOPS | to `fused` (95 %) | CPU us/IO | p50 us | p99 us";
    table(titles, rows)
}
