//! The comparison: in each round, all servers at all points, taking turns.
//!
//! Interleaving spreads other activity of the machine over all servers alike, and each round starts
//! with another server so that none always follows the same one. A missing or failing server is
//! reported; it never stops the others.

use std::time::Duration;

use anyhow::{Context, Result};
use flowstone_experiment::host::Host;
use flowstone_experiment::{CPU_US, Experiment, Figures, IOPS, P99_US};
use flowstone_testkit::process::temp_dir;

use crate::args::CompareArgs;
use crate::disks::Who;
use crate::idle;
use crate::image::Images;
use crate::point::{Point, selected};
use crate::run::Base;
use crate::server::{Server, Setting, versions};

/// Pause between measurements, for the disk to become idle.
const REST: Duration = Duration::from_millis(300);
/// The figures of a failed measurement; without them its round would be compared with another one.
const FAILED: [(&str, f64); 3] = [(IOPS, f64::NAN), (P99_US, f64::NAN), (CPU_US, f64::NAN)];

/// Measures all selected points, and idle disks. Returns the figures, and the number of failures.
pub fn compare(args: &CompareArgs, images: &Images<'_>) -> Result<(Experiment, usize)> {
    let host = Host::inspect(versions(args), images.disk_place());
    let (place, rounds) = (&args.base.place, args.base.run.rounds);
    let of = format!(
        "comparison, {} s a point, CPUs {} and {}, disk image of {} bytes",
        args.base.runtime, place.server_cpu, place.client_cpu, args.base.size
    );
    let mut experiment = args.base.run.experiment_on(host, &of)?;
    experiment.describe(&about(args, experiment.host()));
    let chosen = Point::all().into_iter().filter(|point| selected(&point.name, &args.only));
    let points: Vec<_> = chosen.map(|point| (servers(&point, args), point)).collect();
    let dir = temp_dir()?;
    let mut failures = 0;
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (servers, point) in &points {
            for server in flowstone_experiment::turns(round, servers) {
                let figures = images.prepare(point.backend, *server).and_then(|image| {
                    let image = image.as_deref();
                    server.measure(&Setting { args, point, image, dir: dir.path() })
                });
                let name = server.name(point.backend);
                failures += add(&mut experiment, &point.name, &name, figures);
                std::thread::sleep(REST);
            }
        }
        if selected(idle::NAME, &args.only) {
            failures += compare_idle(args, &mut experiment);
        }
        args.base.run.save(&experiment)?;
    }
    Ok((experiment, failures))
}

fn about(args: &CompareArgs, host: &Host) -> String {
    let Base { place, runtime, size, .. } = &args.base;
    let disk = match &args.device {
        Some(device) => device.display().to_string(),
        None => format!("an image of {} MiB on {}", size >> 20, host.device),
    };
    let versions: Vec<_> = host.versions.iter().map(|(_, version)| version.as_str()).collect();
    format!(
        "Server on CPU {}, client on CPU {client} (one thread), queue size 128; plain fio is one \
         io_uring job on CPU {client}, without a server, and its us/IO is its own CPU. {runtime} s \
         a point, servers in turn; medians, rates with (min-max). Ratios are those of the rates of \
         a round, with the interval that holds the true one in 95 % of all runs (of 6 rounds and \
         more); QSD is its better engine at that point. \"Noisy\" is a point during which others \
         used that share of the machine: do not trust it. The disk is {disk}. {}.",
        place.server_cpu,
        versions.join(", "),
        client = place.client_cpu,
    )
}

/// Returns the servers that can be measured at a point, and says why another one cannot.
fn servers(point: &Point, args: &CompareArgs) -> Vec<Server> {
    let mut servers = Server::for_point(point);
    servers.retain(|server| {
        let missing = server.missing(point, args);
        if let Some(reason) = &missing {
            eprintln!("{}, {}: skipped: {reason}", point.name, server.name(point.backend));
        }
        missing.is_none()
    });
    servers
}

/// Measures idle disks.
fn compare_idle(args: &CompareArgs, experiment: &mut Experiment) -> usize {
    let point = &Point::all()[0];
    let servers = servers(point, args).into_iter().filter(|server| *server != Server::Fio);
    let measure = |server: Server| {
        let who = if server == Server::Flowstone { Who::Flowstone("auto") } else { Who::Qsd };
        let figures = idle::measure(who, &args.base.place);
        add(experiment, idle::NAME, &server.name(point.backend), figures)
    };
    servers.map(measure).sum()
}

/// Adds the figures of a round. Returns the number of failures.
fn add(experiment: &mut Experiment, point: &str, name: &str, figures: Result<Figures>) -> usize {
    match figures.with_context(|| format!("{point}, {name}")) {
        Ok(figures) => {
            experiment.add(point, name, &figures);
            0
        }
        Err(error) => {
            eprintln!("failed: {error:#}");
            experiment.add(point, name, &FAILED);
            1
        }
    }
}
