//! Traces of others, which lie beside the project and are no part of it.

use std::fs;
use std::path::Path;

use flowstone_image::Format;
use flowstone_replay::{Load, ReplayOptions, replay};
use flowstone_testkit::skip;
use flowstone_trace::read;

/// A drive for a longer one would take gigabytes of memory.
const DISK_BYTES_MAX: u64 = 64 << 30;

#[test]
#[ignore = "soak: minutes"]
fn soak_traces_of_others_ask_the_same_of_every_format() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    let Ok(entries) = fs::read_dir(folder) else { return skip("there is no ../shared/traces") };
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> =
        paths.filter(|it| it.extension().is_some_and(|it| it == "zst")).collect();
    paths.sort();
    for path in &paths {
        let trace = read(path).unwrap();
        if trace.end() > DISK_BYTES_MAX {
            println!("{}: a disk of {} bytes, not replayed", path.display(), trace.end());
            continue;
        }
        let reports = Format::ALL.map(|format| {
            let load = Load::Trace(trace.clone());
            let options = ReplayOptions { fill: 0.5, ..ReplayOptions::new(load, format) };
            let report = replay(&options, &mut |_, _| ());
            report.unwrap_or_else(|why| panic!("{}, {format}: {why}", path.display()))
        });
        let asked = reports.each_ref().map(|it| (it.figures.requests, it.figures.guest_blocks));
        println!("{}: {asked:?}", path.display());
        assert!(asked[0].0 > 0 && asked.iter().all(|it| *it == asked[0]), "{asked:?}");
        for report in &reports {
            let (guest, host) = (report.figures.guest_blocks, report.figures.host_blocks.unwrap());
            assert!(host >= guest, "{}: {host} of {guest}", path.display());
        }
    }
}
