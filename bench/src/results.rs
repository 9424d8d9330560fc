//! The tables of all commands, each from the JSON that its command writes, and `flowstone-bench
//! results`, which runs the commands.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::Args;
use flowstone_evidence::{Bench, Plot, render};
use flowstone_experiment::Experiment;
use flowstone_experiment::host::require_commit;

use crate::guest::{again, postmark, same_memory, speed};
use crate::log_image::{cleaning, compare, growth, live, map, steady};
use crate::point::selected;
use crate::pollers::{
    budget, busy, connected, cost, depth, equal, forms, many, moves, share, stages,
};
use crate::qos::{classes, limits, neighbours, overhead, vms};
use crate::{
    cache, cached, compact, filecache, first_screen, markdown, operations, overlay, pdc,
    qcow2_image, record, storm, trace, writers,
};

const LARGE: &str = "320 GiB on a medium that compresses zeroes, by --dir";
const TRACES: &str = "target/evidence/traces, by `evidence --record`";

/// All of them.
pub const BENCHES: [Bench; 42] = [
    of("bench", "--rounds 7 --runtime 0.5", 16, markdown::render),
    Bench {
        data: "bench",
        ..of("first-screen", "--rounds 7 --runtime 0.5", 0, first_screen::render)
    },
    of("log", "log --rounds 5 --runtime 0.5 --size 2G", 8, compare::render),
    of("steady", "log steady --rounds 5 --dir /dev/shm --size 512M", 7, steady::render),
    of(
        "steady-disk",
        "log steady --rounds 5 --size 512M --before 3 --measured 2 --only uniform-max",
        3,
        steady::render,
    ),
    of("steady-live", "log steady --rounds 5 --size 1G --live 0.7 --before 3", 5, live::render),
    of("map", "log map --rounds 5", 4, map::render),
    Bench {
        needs: LARGE,
        plot: Some(("docs/evidence/growth.svg", growth::plot as Plot)),
        ..of("growth", "log growth", 90, growth::render)
    },
    Bench { needs: LARGE, ..of("cleaning", "log cleaning", 60, cleaning::render) },
    of("record", "record --rounds 9", 3, record::render),
    of("overlay", "overlay --rounds 5 --runtime 0.4 --size 512M", 1, overlay::render),
    of("storm", "storm --rounds 5 --runtime 3", 6, storm::render),
    of("operations", "operations --rounds 5 --runtime 2", 3, operations::render),
    of("compact", "compact --rounds 5 --size 1G", 5, compact::render),
    of("qcow2", "qcow2 --rounds 5 --size 2G --runtime 1", 4, qcow2_image::render),
    of("qcow2-cached", "qcow2 --rounds 5 --size 1G --runtime 1 --cached", 3, qcow2_image::render),
    of("cached", "cached --rounds 5 --runtime 0.5", 6, cached::render),
    of("qos-limits", "qos --rounds 5 --only limits", 1, limits),
    of("qos-neighbours", "qos --rounds 5 --only neighbours", 2, neighbours),
    of("qos-overhead", "qos --rounds 5 --only overhead", 1, overhead),
    of("qos-vms", "qos --rounds 5 --runtime 0.8 --size 256M --only vms", 4, vms::render),
    of("qos-classes", "qos --rounds 6 --size 256M --only classes", 6, classes::render),
    Bench {
        plot: Some(("docs/pictures/pollers.svg", share::plot as Plot)),
        ..of("pollers-share", "pollers --rounds 9 --only share", 3, share::render)
    },
    of("pollers-equal", "pollers --rounds 15 --only equal", 5, equal::render),
    of("pollers-forms", "pollers --rounds 15 --only forms", 4, forms::render),
    of("pollers-cost", "pollers --rounds 15 --only cost", 7, cost::render),
    of("pollers-connected", "pollers --rounds 5 --only connected", 4, connected::render),
    of("pollers-moves", "pollers --rounds 5 --only moves", 1, moves::render),
    of("pollers-budget", "pollers --rounds 9 --only budget", 1, budget::render),
    of("pollers-busy", "pollers --rounds 9 --runtime 1 --only busy", 5, busy::render),
    of("pollers-stages", "pollers --rounds 3 --runtime 10 --only stages", 9, stages::render),
    Bench {
        plot: Some(("docs/evidence/pollers-many.svg", many::plot as Plot)),
        ..of("pollers-many", "pollers --rounds 5 --runtime 1 --only many", 3, many::render)
    },
    of("pollers-depth", "pollers --rounds 40 --only depth", 4, depth::render),
    of("writers", "writers", 60, writers::render),
    of("pdc", "pdc --rounds 5", 15, pdc::render),
    Bench { needs: TRACES, ..of("trace", "trace --rounds 7", 10, trace::render) },
    Bench {
        needs: TRACES,
        ..of(
            "hits",
            "cache --trace target/evidence/traces/postmark-sizes.csv.zst --warmup 5 --bytes \
             250M,500M,1G,2G,4G --policy multicache-count,multicache-weight,lru,default",
            2,
            cache::render,
        )
    },
    of("guest-postmark", "guest postmark --rounds 3", 10, postmark::render),
    of(
        "filecache",
        "filecache --load zipf9,scan,zipf7,uniform,moving,loop --fraction 0.01,0.1,0.2,0.4,0.8",
        1,
        filecache::render,
    ),
    of("guest-speed", "guest speed --rounds 7 --dir /dev/shm", 5, speed::render),
    of("guest-again", "guest again --rounds 5", 1, again::render),
    of("guest-same-memory", "guest same-memory --rounds 5", 5, same_memory::render),
];

/// A table with data of its own.
const fn of(
    name: &'static str,
    command: &'static str,
    minutes: u32,
    render: fn(&Experiment) -> String,
) -> Bench {
    Bench { name, data: name, command, minutes, needs: "", render, plot: None }
}

/// Options.
#[derive(Clone, Debug, Args)]
pub struct ResultsArgs {
    /// Print the commands, with their estimated times, and run nothing.
    #[arg(long)]
    list: bool,
    /// Only tables whose name contains this; may be given several times. Without it those are left
    /// out that need more than the peers.
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
}

/// Carries out the subcommand: measures all tables again, and writes their pages.
pub fn results(args: &ResultsArgs) -> Result<()> {
    let mut failures = Vec::new();
    let of_data = BENCHES.iter().filter(|bench| bench.name == bench.data);
    for bench in of_data.filter(|bench| selected(bench.name, &args.only)) {
        let Bench { name, command, minutes, needs, .. } = bench;
        let file = bench.file();
        let needed = if needs.is_empty() { String::new() } else { format!(", needs {needs}") };
        if args.list {
            println!("{name} ({minutes} min{needed})");
            println!("    flowstone-bench {command} --json {file}");
            continue;
        }
        if args.only.is_empty() && !needs.is_empty() {
            eprintln!("{name} is left out{needed}");
            continue;
        }
        require_commit(Path::new(&file))?;
        eprintln!("{name}: {command}, about {minutes} min");
        let mut measure = Command::new(std::env::current_exe()?);
        // A run that fails leaves the table as it was.
        let fresh = format!("target/{name}.json");
        let measured = measure.args(command.split(' ')).args(["--json", &fresh]).status()?;
        match measured.success() {
            true => std::fs::rename(&fresh, &file)?,
            false => failures.push(format!("{name} ended with {measured}")),
        }
    }
    if !args.list {
        render(&BENCHES)?;
    }
    ensure!(failures.is_empty(), "tables are left as they were: {}", failures.join("; "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flowstone_evidence::page_of;
    use flowstone_experiment::host::Host;

    use super::*;
    use crate::Cli;
    use clap::Parser;

    /// Made-up figures of two contenders at a point of each table, and the line that shows them.
    const MADE_UP: [(&str, &str, [&str; 2], &str, &str); 14] = [
        (
            "writers",
            "xfs randwrite",
            ["raw", "log"],
            "iops",
            "| xfs | random | 1 | 4 | 6 | - | - | - | 1.500 | - | - | - | - | - | - | - |",
        ),
        (
            "trace",
            "without",
            ["Flowstone, raw", "qemu-storage-daemon, raw"],
            "iops",
            "| without | Flowstone, raw | 4 | 0.667 | - |",
        ),
        (
            "growth",
            "1000000",
            ["log", "none"],
            "map_mib",
            "| 1,000,000 | 4.0 | - | - | - | - | - |",
        ),
        (
            "cleaning",
            "cleaning",
            ["few segments", "many segments"],
            "cleaning_us",
            "| many segments | - | - | 6.00 | 1.500 | - | - |",
        ),
        (
            "pollers-forms",
            "forms, QD32, its own CPU",
            ["`fused`", "`split`"],
            "iops",
            "| QD32, its own CPU | `split` | 6 | 1.500 | - | - | - |",
        ),
        (
            "pollers-cost",
            "cost, 20,000/s, polls",
            ["QSD", "`auto`"],
            "server_us_per_io",
            "| 20,000/s | polls | `auto` | - | - | 6.00 | 1.500 | - | - | - | - |",
        ),
        (
            "pollers-equal",
            "equal, tmpfs randread, client polls",
            ["`1`", "`per-queue`"],
            "iops",
            "| tmpfs randread, client polls | `per-queue` | 4 | 6 | 0.667 | - | - | - | - | - |",
        ),
        (
            "pollers-busy",
            "busy, polls, alone",
            ["QSD", "`auto`"],
            "p99_us",
            "| polls | `auto` | - | 6.0 | - | - | - |",
        ),
        (
            "pollers-stages",
            "stages, hits",
            ["`fused`", "`split`"],
            "iops",
            "| hits | `split` | 6 | 1.500 | - | - | - |",
        ),
        (
            "pollers-many",
            "many, 200 disks, 20 busy",
            ["`auto`", "QSD"],
            "server_us_per_io",
            "| 200 disks, 20 busy | QSD | - | 6.00 | - | - | - |",
        ),
        (
            "pollers-depth",
            "depth, QD1",
            ["`auto`", "QSD"],
            "handover_ns",
            "| QD1 | - of 0 | - of 0 | - | - | - of 0 | - of 0 | - |",
        ),
        (
            "pdc",
            "our cache, `default`, 8 reads",
            ["on", "off"],
            "transactions_per_s",
            "| our cache, `default`, 8 reads | 4 | 6 | 0.667 | - | - |",
        ),
        ("hits", "250 MiB", ["multicache", "default"], "hit_ratio", "| 250 MiB | 4.000 | 6.000 |"),
        (
            "guest-postmark",
            "1024 KiB, 100 % reads",
            ["0 % cached", "80 % cached"],
            "mb_per_s",
            "| 1024 KiB, 100 % reads | 4.00 | - | - | - | 1.500 |",
        ),
    ];

    fn root() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
    }

    #[test]
    fn a_table_shows_the_data_of_its_command() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(BENCHES.iter().all(|it| it.rendered(root).unwrap().is_none()));
        std::fs::create_dir_all(root.join("docs/results")).unwrap();
        for (data, point, contenders, figure, line) in MADE_UP {
            let mut experiment = Experiment::new("test", Host::default());
            contenders.iter().zip([4.0, 6.0]).for_each(|(contender, value)| {
                experiment.add(point, contender, &[(figure, value)]);
            });
            experiment.describe("In turn.");
            let bench = BENCHES.iter().find(|bench| bench.name == data).unwrap();
            experiment.write(&root.join(bench.file())).unwrap();
            let text = bench.rendered(root).unwrap().unwrap();
            assert!(text.contains(line), "{text}");
            assert!(text.contains("In turn.\n\n"), "{text}");
            assert!(text.contains("\n\nMeasured "), "{text}");
        }
    }

    /// A figure changes only with its data, never by hand.
    #[test]
    fn the_pages_say_what_the_data_says() {
        for bench in &BENCHES {
            let page = std::fs::read_to_string(page_of(root(), bench.name).unwrap()).unwrap();
            // It may have no data yet.
            let text = bench.rendered(root()).unwrap().unwrap_or_default();
            let name = bench.name;
            assert!(page.contains(&text), "{name}: run `flowstone-bench evidence --render`");
        }
    }

    #[test]
    fn the_commands_are_understood() {
        for Bench { command, name, .. } in &BENCHES {
            let words = ["flowstone-bench"].into_iter().chain(command.split(' '));
            let parsed = Cli::try_parse_from(words.chain(["--json", "target/x.json"]));
            assert!(parsed.is_ok(), "{name}: {}", parsed.unwrap_err());
        }
    }

    #[test]
    fn pictures_show_what_the_data_says() {
        let place = tempfile::tempdir().unwrap();
        for folder in ["docs/evidence", "docs/pictures"] {
            std::fs::create_dir_all(place.path().join(folder)).unwrap();
        }
        for bench in &BENCHES {
            bench.draw(root(), place.path()).unwrap();
            let Some((file, _)) = bench.plot else { continue };
            let Ok(drawn) = std::fs::read(place.path().join(file)) else { continue };
            let kept = std::fs::read(root().join(file)).unwrap();
            assert!(drawn == kept, "{}: run `flowstone-bench evidence --render`", bench.name);
        }
    }
}
