use flowstone_experiment::host::Host;
use flowstone_experiment::{Experiment, Figures};

use super::*;
use crate::first_screen;
use crate::point::Point;
use crate::server::Aio;

#[test]
fn large_numbers_are_grouped() {
    assert_eq!(thousands(7.4), "7");
    assert_eq!(thousands(1_234_567.8), "1,234,568");
    assert_eq!(thousands(100_000.0), "100,000");
}

const QSD: [Server; 2] = [Server::Qsd(Aio::Native), Server::Qsd(Aio::Uring)];

/// The servers of a point, with their rates by round.
type MadeUp = (&'static str, &'static [(Server, &'static [f64])]);

const MADE_UP: [MadeUp; 4] = [
    (
        "null-randread-4k-qd1",
        &[(Server::Flowstone, &[1000.0, 1200.0, 1100.0]), (QSD[1], &[f64::NAN, f64::NAN])],
    ),
    (
        "disk-randread-4k-qd32",
        &[
            (Server::Flowstone, &[20e3, 21e3, 22e3, 23e3, 24e3, 25e3, 26e3]),
            (QSD[0], &[10e3, 11e3, 12e3, 13e3, 12e3, 11e3, 10e3]),
            (QSD[1], &[15e3, 14e3, 13e3, 12e3, 13e3, 14e3, 15e3]),
            (Server::Fio, &[30e3, 31e3, 30e3, 31e3, 30e3, 31e3, 30e3]),
        ],
    ),
    ("qcow2-new-randwrite-4k-qd32", &[(Server::Flowstone, &[50e3])]),
    (
        "log-new-randwrite-4k-qd32",
        &[
            (Server::Flowstone, &[123_456.7, f64::NAN, 133_456.7]),
            (Server::FlowstoneRaw, &[61_728.35, 61_728.35, 61_728.35]),
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

#[test]
fn the_tables_of_made_up_figures_are_these() {
    let mut experiment = Experiment::new("test", Host::default());
    for (name, servers) in MADE_UP {
        let point = Point::all().into_iter().find(|point| point.name == name).unwrap();
        for &(server, rates) in servers {
            let own = server.name(point.backend);
            rates.iter().for_each(|rate| experiment.add(name, &own, &figures(server, *rate)));
        }
    }
    let idle = [
        (CPU_PERCENT, 0.1234),
        (WAKEUPS, 2.25),
        (THREADS, 3.0),
        (RSS_MIB, 12.34),
        (ANONYMOUS_MIB, 5.67),
    ];
    experiment.add(idle::NAME, "Flowstone", &idle);
    let text = format!("{}\n{}", render(&experiment), first_screen::render(&experiment));
    assert_eq!(text, include_str!("made_up.txt"));
}
