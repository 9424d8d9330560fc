//! The tables of other commands, which measure speed and need a quiet machine: the pages show what
//! the command's own document does, from the JSON that it writes.

use flowstone_evidence::Bench;
use flowstone_experiment::Experiment;

use crate::cache;
use crate::guest::postmark;
use crate::log_image::{cleaning, growth};
use crate::pdc;
use crate::pollers::{busy, cost, depth, equal, forms, many, stages};
use crate::trace;
use crate::writers;

/// All of them.
pub const BENCHES: [Bench; 14] = [
    of("writers", "writers", writers::render),
    of("trace", "trace --rounds 7", trace::render),
    of("growth", "log growth", growth::render),
    of("cleaning", "log cleaning", cleaning::render),
    of_pollers("pollers-forms", forms::render),
    of_pollers("pollers-cost", cost::render),
    of("pollers-equal", "pollers --rounds 15 --only equal", equal::render),
    of("pollers-busy", "pollers --rounds 9 --runtime 1 --only busy", busy::render),
    of("pollers-stages", "pollers --rounds 3 --runtime 10 --only stages", stages::render),
    Bench {
        plot: Some(many::plot),
        ..of("pollers-many", "pollers --rounds 5 --runtime 1 --only many", many::render)
    },
    of("pollers-depth", "pollers --rounds 40 --only depth", depth::render),
    of("pdc", "pdc --rounds 3", pdc::render),
    of(
        "hits",
        "cache --trace target/evidence/traces/postmark-sizes.csv.zst --warmup 5 --bytes \
         250M,500M,1G,2G,4G --policy multicache-count,multicache-weight,lru,default",
        cache::render,
    ),
    of("guest-postmark", "guest postmark --rounds 3", postmark::render),
];

/// A table with data of its own.
const fn of(name: &'static str, command: &'static str, render: fn(&Experiment) -> String) -> Bench {
    Bench { name, data: name, command, render, plot: None }
}

const fn of_pollers(name: &'static str, render: fn(&Experiment) -> String) -> Bench {
    let command = "pollers --rounds 15 --only forms --only cost";
    Bench { data: "pollers", ..of(name, command, render) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use flowstone_experiment::host::Host;

    use super::*;

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
            "pollers",
            "forms, QD32, its own CPU",
            ["`fused`", "`split`"],
            "iops",
            "| QD32, its own CPU | `split` | 6 | 1.500 | - | - | - |",
        ),
        (
            "pollers",
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
            "| QD1 | - (0) | - (0) | - | - | - (0) | - (0) | - |",
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

    #[test]
    fn a_table_shows_the_data_of_its_command() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::create_dir(folder.join("data")).unwrap();
        assert!(BENCHES.iter().all(|it| it.rendered(folder).unwrap().is_none()));
        for data in [
            "writers",
            "trace",
            "growth",
            "cleaning",
            "pollers",
            "pollers-equal",
            "pollers-busy",
            "pollers-stages",
            "pollers-many",
            "pollers-depth",
            "pdc",
            "hits",
            "guest-postmark",
        ] {
            let mut experiment = Experiment::new("test", Host::default());
            for (_, point, contenders, figure, _) in MADE_UP.iter().filter(|it| it.0 == data) {
                contenders.iter().zip([4.0, 6.0]).for_each(|(contender, value)| {
                    experiment.add(point, contender, &[(figure, value)]);
                });
            }
            experiment.write(&folder.join(format!("data/{data}.json"))).unwrap();
        }
        for (bench, (.., line)) in BENCHES.iter().zip(MADE_UP) {
            let text = bench.rendered(folder).unwrap().unwrap();
            assert!(text.contains(line), "{text}");
            assert!(text.contains("\n\nMeasured "), "{text}");
        }
    }

    /// A figure changes only with its data, never by hand.
    #[test]
    fn the_pages_say_what_the_data_says() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evidence"));
        let pages = ["S1.md", "S2.md", "S4.md", "S5.md"];
        let pages = pages.map(|page| std::fs::read_to_string(folder.join(page)).unwrap());
        for bench in &BENCHES {
            let (name, mark) = (bench.name, format!("<!-- {}:begin -->", bench.name));
            let page = pages.iter().find(|page| page.contains(&mark)).expect(name);
            // It may have no data yet.
            let text = bench.rendered(folder).unwrap().unwrap_or_default();
            assert!(page.contains(&text), "{name}: run `flowstone-bench evidence --render`");
        }
    }

    #[test]
    fn pictures_show_what_the_data_says() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/evidence"));
        let place = tempfile::tempdir().unwrap();
        for bench in BENCHES.iter().filter(|bench| bench.plot.is_some()) {
            bench.draw(folder, place.path()).unwrap();
            let both = [place.path(), folder].map(|it| it.join(format!("{}.svg", bench.name)));
            let [drawn, kept] = both.map(|it| std::fs::read(it).unwrap());
            assert!(drawn == kept, "{}: run `flowstone-bench evidence --render`", bench.name);
        }
    }
}
