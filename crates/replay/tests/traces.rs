//! Traces of others, which lie beside the project and are no part of it.

use std::fs;
use std::path::Path;

use flowstone_image::Format;
use flowstone_replay::{Load, ReplayOptions, replay};
use flowstone_testkit::skip;
use flowstone_trace::{Kind, read};

/// A drive for a longer one would take gigabytes of memory.
const DISK_BYTES_MAX: u64 = 64 << 30;

#[test]
#[ignore = "soak: minutes"]
fn soak_traces_of_others_are_replayed_in_every_format() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    let Ok(entries) = fs::read_dir(folder) else { return skip("there is no ../shared/traces") };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "zst")).collect();
    paths.sort();
    let mut replayed = 0;
    for path in &paths {
        let trace = read(path).unwrap();
        let writes = trace.events.iter().filter(|event| event.kind == Kind::Write).count();
        if writes == 0 || trace.end() > DISK_BYTES_MAX {
            println!("{}: {writes} writes to a disk of {} bytes", path.display(), trace.end());
            continue;
        }
        for format in Format::ALL {
            let load = Load::Trace(trace.clone());
            let options = ReplayOptions { fill: 0.5, ..ReplayOptions::new(load, format) };
            let report = replay(&options, &mut |_, _| ());
            let report = report.unwrap_or_else(|why| panic!("{}, {format}: {why}", path.display()));
            let host_waf = report.figures.host_waf.unwrap();
            println!("{}, {format}: {host_waf}", path.display());
            // Raw images write what is asked for, in whole sectors; the others add their maps.
            assert!(report.figures.writes >= writes as u64 && host_waf >= 1.0, "{host_waf}");
        }
        replayed += 1;
    }
    assert!(replayed > 0, "no trace is short enough");
}
