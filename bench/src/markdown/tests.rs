use clap::Parser;
use flowstone_experiment::host::Host;
use flowstone_experiment::{Experiment, Figures};

use super::*;
use crate::point::Point;
use crate::server::Aio;
use crate::{Cli, first_screen};

#[test]
fn large_numbers_are_grouped() {
    assert_eq!(thousands(7.4), "7");
    assert_eq!(thousands(1_234_567.8), "1,234,568");
    assert_eq!(thousands(100_000.0), "100,000");
}

const QSD: [Server; 2] = [Server::Qsd(Aio::Native), Server::Qsd(Aio::Uring)];

/// The servers of a point, with their rates by round; why one is skipped, and its failures.
type MadeUp =
    (&'static str, &'static [(Server, &'static [f64], &'static str, &'static [&'static str])]);

const MADE_UP: [MadeUp; 4] = [
    (
        "null-randread-4k-qd1",
        &[
            (Server::Flowstone, &[1000.0, 1200.0, 1100.0], "", &[]),
            (QSD[1], &[], "", &["round 1: broken", "round 2: broken, too"]),
            (Server::Fio, &[], "fio has no ring", &[]),
        ],
    ),
    (
        "disk-randread-4k-qd32",
        &[
            (Server::Flowstone, &[20e3, 21e3, 22e3, 23e3, 24e3, 25e3, 26e3], "", &[]),
            (QSD[0], &[10e3, 11e3, 12e3, 13e3, 12e3, 11e3, 10e3], "", &[]),
            (QSD[1], &[15e3, 14e3, 13e3, 12e3, 13e3, 14e3, 15e3], "", &[]),
            (Server::Fio, &[30e3, 31e3, 30e3, 31e3, 30e3, 31e3, 30e3], "", &[]),
        ],
    ),
    (
        "qcow2-new-randwrite-4k-qd32",
        &[(Server::Flowstone, &[50e3], "", &[]), (QSD[0], &[], "not installed", &[])],
    ),
    (
        "log-new-randwrite-4k-qd32",
        &[
            (Server::Flowstone, &[123_456.7, 133_456.7], "", &["round 2: broken"]),
            (Server::FlowstoneRaw, &[61_728.35, 61_728.35, 61_728.35], "", &[]),
        ],
    ),
];

fn figures(server: Server, rate: f64) -> Figures {
    let ring = |per_io| if server == Server::Fio { f64::NAN } else { per_io };
    vec![
        (IOPS, rate),
        (P50_US, 1e6 / rate),
        (P99_US, 3e6 / rate),
        (CPU_US, rate / 1e4),
        (KICKS_PER_IO, ring(0.0625)),
        (CALLS_PER_IO, ring(0.125)),
        (OTHERS_PERCENT, if rate == 24e3 { 23.4 } else { 5.0 }),
    ]
}

fn contender(name: String, server: Server, skipped: &str, failures: &[&str]) -> Contender {
    let skipped = (!skipped.is_empty()).then(|| skipped.to_owned());
    Contender { name, server, skipped, failures: failures.iter().map(|&it| it.into()).collect() }
}

#[test]
fn the_tables_of_made_up_figures_are_these() {
    let versions = ["flowstone", "fio"].map(|name| (name.to_owned(), format!("{name} 1.0")));
    let host = Host { cpus: 2, versions: versions.to_vec(), ..Host::default() };
    let mut experiment = Experiment::new("test", host);
    let mut points = Vec::new();
    for (name, servers) in MADE_UP {
        let point = Point::all().into_iter().find(|point| point.name == name).unwrap();
        let mut group = Group { point, servers: Vec::new() };
        for &(server, rates, skipped, failures) in servers {
            let own = contender(server.name(group.point.backend), server, skipped, failures);
            rates.iter().for_each(|rate| experiment.add(name, &own.name, &figures(server, *rate)));
            group.servers.push(own);
        }
        points.push(group);
    }
    let idle = [
        (CPU_PERCENT, 0.1234),
        (WAKEUPS, 2.25),
        (THREADS, 3.0),
        (RSS_MIB, 12.34),
        (ANONYMOUS_MIB, 5.67),
    ];
    experiment.add(idle::NAME, "Flowstone", &idle);
    let idle = vec![
        contender("Flowstone".to_owned(), Server::Flowstone, "", &[]),
        contender("QSD".to_owned(), QSD[1], "", &["broken"]),
    ];
    let args = Cli::parse_from(["flowstone-bench"]).compare;
    let report = Report { args: &args, experiment, points, idle };
    let text = format!("{}\n{}", render(&report), first_screen::render(&report));
    assert_eq!(text, include_str!("made_up.txt"));
}
