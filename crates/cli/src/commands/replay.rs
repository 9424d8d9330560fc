//! `flowstone replay`

use std::path::Path;

use flowstone_block::{Error, Result, format_size};
use flowstone_cache::CacheConfig;
use flowstone_daemon::Pdc;
use flowstone_fileio::{Access, FileOpener, OpenOptions};
use flowstone_formats::ImageOptions;
use flowstone_replay::{
    CacheOptions, ClassHits, Hits, Ideal, KindBlocks, Kinds, Load, Onto, PhaseFigures,
    ReplayOptions, Report, SsdOptions, Timing, Trace, read_trace, replay,
};

use super::print_report;
use crate::args::{Replay, StorageArgs, WhenMade};
use crate::output::{out, tell};
use crate::progress::{bar, under};

pub fn run(args: &Replay, opener: FileOpener) -> Result<()> {
    let options = options(args, opener)?;
    let report = under(bar("replaying"), |progress| replay(&options, progress));
    let report = report.map_err(|error| refused(format!("{error:#}")))?;
    print_report(&report, args.json, |report| print(report, args.images));
    Ok(())
}

/// Reads a trace and prints warnings about missing information.
pub fn trace_at(path: &Path) -> Result<Trace> {
    let trace = read_trace(path).map_err(|error| refused(format!("{error:#}")))?;
    for warning in trace.warnings() {
        tell!("{}: {warning}", path.display());
    }
    Ok(trace)
}

fn refused(why: String) -> Error {
    Error::invalid("replay", why, "see flowstone replay --help")
}

fn options(args: &Replay, opener: FileOpener) -> Result<ReplayOptions> {
    let load = match (&args.trace, args.generate) {
        (Some(_), _) if args.tells_soon() => {
            return Err(refused("a trace has classes of its own: --lifetimes is 2 to 5".into()));
        }
        (Some(path), _) => Load::Trace(trace_at(path)?),
        (None, Some(generator)) => Load::Generated(generator, args.ops),
        (None, None) => return Err(refused("there is no --trace and no --generate".into())),
    };
    let storage = args.storage()?;
    Ok(ReplayOptions {
        load,
        images: args.images,
        size: args.size,
        fill: args.fill,
        format: args.format,
        create: args.create_options()?,
        image: ImageOptions {
            age_power: args.age_power,
            copy_lifetimes: args.copy_lifetimes(),
            ..image_options(&storage, opener)
        },
        cache: cache_options(&storage)?,
        onto: args.onto.clone().map(|path| Onto { path, overwrite: args.overwrite }),
        ssd: SsdOptions {
            trim: args.trim.unwrap_or(args.ssd.trim),
            is_aged: args.aged,
            ..args.ssd
        },
        iodepth: args.iodepth,
        timing: match args.timing {
            WhenMade::Asap => Timing::Asap,
            WhenMade::Trace => Timing::Trace,
        },
        warmup: args.warmup,
        passes: args.passes,
        seed: args.seed,
        tells_soon: args.tells_soon(),
    })
}

fn image_options(storage: &StorageArgs, opener: FileOpener) -> ImageOptions {
    let dont_cache = storage.journals.pdc == Pdc::On;
    let file = OpenOptions { dont_cache, ..storage.file.options(Access::Write) };
    let copy_memory = storage.copies.memory();
    let args = storage.image.clone();
    ImageOptions { opener, args, copy_memory, ..ImageOptions::new(file) }
}

fn cache_options(storage: &StorageArgs) -> Result<Option<CacheOptions>> {
    let refuse = |(why, advice)| Error::invalid("cache", why, advice);
    let cache = storage.cache.config().map_err(refuse)?;
    let holds_journals = storage.journals.pdc == Pdc::Off;
    Ok(cache.map(|CacheConfig { bytes_max, policy, .. }| CacheOptions {
        bytes: bytes_max,
        policy,
        holds_journals,
    }))
}

fn print(report: &Report, images: usize) {
    let it = &report.figures;
    let number = |number: Option<f64>| number.map_or_else(|| "?".into(), |sum| format!("{sum:.0}"));
    let (size, format) = (format_size(report.disk_bytes), &report.format);
    let disk = match images {
        1 => format!("{size}, {format} image"),
        _ => format!("{size}, {images} {format} images"),
    };
    let mut rows = vec![
        ("disk", disk),
        ("requests", it.requests.to_string()),
        (
            "",
            format!(
                "{} reads, {} writes ({:.0} % sequential), {} flushes, {} discards",
                it.reads, it.writes, it.sequential_percent, it.flushes, it.discards
            ),
        ),
        ("written, 4 KiB", format!("{:.0} by the guest", it.guest_blocks)),
        ("", format!("{} to the file, {} host WAF", number(it.host_blocks), ratio(it.host_waf))),
    ];
    rows.extend(of_drive(report));
    rows.extend(report.ideal.iter().map(of_ideal));
    rows.extend(report.kinds.iter().flat_map(|kinds| of_kinds(kinds, it.host_blocks)));
    rows.push(("punches", it.punches.to_string()));
    rows.extend(report.hits.iter().flat_map(of_cache));
    rows.push(match it.device_seconds {
        Some(busy) => ("time", format!("{busy:.1} s of the drive's work in {:.1} s", it.seconds)),
        None => {
            let rate = it.requests as f64 / it.seconds;
            ("time", format!("{:.1} s, {rate:.0} requests a second", it.seconds))
        }
    });
    for (name, value) in rows {
        out!("{name:<16} {value}");
    }
    print_phases(&report.phases);
}

/// Prints a line for each phase that the trace names.
fn print_phases(phases: &[PhaseFigures]) {
    if phases.is_empty() {
        return;
    }
    let row = |cells: [&str; 6]| {
        let [name, requests, guest, host, total, busy] = cells;
        out!("{name:<16} {requests:>10} {guest:>13} {host:>9} {total:>10} {busy:>9}");
    };
    out!("");
    row(["phase", "requests", "4 KiB written", "host WAF", "total WAF", "drive, s"]);
    for PhaseFigures { name, figures } in phases {
        let busy = figures.device_seconds.map_or_else(|| "no".into(), |busy| format!("{busy:.1}"));
        // A trace comes from elsewhere.
        let name: String = name.escape_debug().take(16).collect();
        row([
            &name,
            &figures.requests.to_string(),
            &format!("{:.0}", figures.guest_blocks),
            &ratio(figures.host_waf),
            &ratio(figures.total_waf),
            &busy,
        ]);
    }
}

/// Returns the figures of a modelled drive.
fn of_drive(report: &Report) -> Vec<(&'static str, String)> {
    let (Some(drive), Some(blocks)) = (report.drive_bytes, report.figures.device_blocks) else {
        return Vec::new();
    };
    let waf = ratio(report.figures.device_waf);
    vec![
        ("", format!("{blocks:.0} by the drive, {waf} device WAF")),
        ("total WAF", ratio(report.figures.total_waf)),
        ("drive", format!("{} for the host", format_size(drive))),
        (
            "erases",
            format!(
                "{}; of a block, {:.1} on average, {} at most",
                report.figures.erases.unwrap_or_default(),
                report.erases_mean.unwrap_or_default(),
                report.erases_most.unwrap_or_default()
            ),
        ),
    ]
}

fn of_ideal(ideal: &Ideal) -> (&'static str, String) {
    let Ideal { live_share, waf, total_to_ideal } = ideal;
    let ratio = ratio(*total_to_ideal);
    let text = format!(
        "{waf:.3} WAF (simulated: two lifetimes, cost-benefit) where {live_share:.3} is live; \
         total WAF is {ratio} x that"
    );
    ("ideal log", text)
}

/// Returns the writes of a log image by their kind, and what each adds to the drive's WAF.
fn of_kinds(kinds: &Kinds, host_blocks: Option<f64>) -> Vec<(&'static str, String)> {
    let is_there = |(_, it): &(&str, KindBlocks)| it.host_blocks + it.copied_blocks > 0.0;
    let row = |(name, it): (&'static str, KindBlocks)| {
        let KindBlocks { host_blocks: written, copied_blocks: copied } = it;
        let added = ratio(host_blocks.map(|all| copied / all));
        (
            name,
            format!(
                "{written:.0} to the file, {copied:.0} copied by the drive: {added} of its WAF"
            ),
        )
    };
    kinds.named().into_iter().filter(is_there).map(row).collect()
}

fn of_cache(hits: &Hits) -> Vec<(&'static str, String)> {
    let row = |name, ClassHits { hits, misses, hit_ratio }: &ClassHits| {
        let text = format!("{hits} of {} blocks read, {}", hits + misses, ratio(*hit_ratio));
        (name, text)
    };
    vec![
        row("hits, data", &hits.data),
        row("metadata", &hits.metadata),
        row("journal", &hits.journal),
    ]
}

pub fn ratio(ratio: Option<f64>) -> String {
    ratio.map_or_else(|| "no".into(), |ratio| format!("{ratio:.3}"))
}
