//! `flowstone serve`: from the command line to a configuration.

use std::io::IsTerminal;

use flowstone_block::Result;
use flowstone_daemon::Config;
use flowstone_fileio::FileOpener;
use tracing::level_filters::LevelFilter;
use tracing::warn;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::args::Serve;
use crate::output::{out, tell};

const LOG_VARIABLE: &str = "FLOWSTONE_LOG";
const LOG_DEFAULT: &str = "info";

pub fn run(args: Serve, opener: FileOpener) -> Result<()> {
    start_log();
    give_memory_back();
    let config = match args {
        Serve::Typed(daemon, disk) => Config::typed(*daemon, disk.map(|disk| *disk))?,
        Serve::File(file, typed) => Config::read(&file, &typed)?,
        Serve::Check(file, typed) => return check(Config::read(&file, &typed)?),
    };
    flowstone_daemon::serve(config, opener)
}

/// Checks a configuration and prints all errors, so that one run suffices.
fn check(config: Config) -> Result<()> {
    out!("{} disks can be, {} cannot", config.disks.len(), config.refused.len());
    let mut refused = config.refused.into_iter();
    let last = refused.next_back();
    refused.for_each(|error| tell!("{error}"));
    last.map_or(Ok(()), Err)
}

/// Makes large allocations return to the host when freed. Otherwise the C library would adapt to
/// the first large blocks and keep the next ones: disks that came and went left 190 MB.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes a number that the allocator looks at under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
    }
}

/// Logs to standard error; FLOWSTONE_LOG selects, e.g. `debug` or `flowstone_frontend=debug`.
fn start_log() {
    let wanted = std::env::var_os(LOG_VARIABLE).unwrap_or_default();
    let filter = log_filter(&wanted.to_string_lossy());
    let refused = filter.as_ref().err().cloned();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(wants_colours())
        // A log that cannot be written (its reader or terminal is gone) is reported to standard
        // error, which fails too, and that would be a panic of the thread that wrote the line.
        .log_internal_errors(false);
    let filter = filter.unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    tracing_subscriber::registry().with(filter).with(lines).init();
    if let Some(why) = refused {
        let advice = "give a level (error, warn, info, debug, trace, off) or TARGET=LEVEL";
        warn!("{LOG_VARIABLE}: {why}; {advice}; the log is as without it");
    }
}

/// Returns the filter on top of the default: naming one part of the program does not silence the
/// others. A word that is neither a level nor one of our parts is refused: it would be taken for
/// the name of some part, and a misspelt level would change nothing, or silence all.
fn log_filter(wanted: &str) -> std::result::Result<Targets, String> {
    let directives = wanted.split(',').map(str::trim).filter(|it| !it.is_empty());
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    for word in directives.clone().filter(|it| !it.contains(['=', '['])) {
        if !is_level(word) && !word.starts_with("flowstone") {
            return Err(format!("{word:?} is no level"));
        }
    }
    let default = (!directives.clone().any(is_level)).then_some(LOG_DEFAULT);
    let all: Vec<&str> = default.into_iter().chain(directives).collect();
    all.join(",").parse().map_err(|error: ParseError| error.to_string())
}

/// Returns whether to use colours: on a terminal, unless NO_COLOR (no-color.org) is set.
fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::{Layer, Registry};

    use super::*;

    /// Regression: `FLOWSTONE_LOG=` silenced everything, errors included, and so did
    /// `FLOWSTONE_LOG=debgu`.
    #[test]
    fn an_empty_or_misspelt_selection_silences_nothing() {
        let level =
            |wanted| log_filter(wanted).map(|filter| Layer::<Registry>::max_level_hint(&filter));
        for wanted in ["", " ", ",", "info"] {
            assert_eq!(level(wanted), Ok(Some(LevelFilter::INFO)), "{wanted:?}");
        }
        for (wanted, most) in [
            ("debug", LevelFilter::DEBUG),
            ("error", LevelFilter::ERROR),
            ("off", LevelFilter::OFF),
            ("flowstone_frontend=debug", LevelFilter::DEBUG),
            ("flowstone_frontend", LevelFilter::TRACE),
            ("warn,flowstone_image=trace", LevelFilter::TRACE),
            // The rest is logged as usual.
            ("flowstone_frontend=error", LevelFilter::INFO),
        ] {
            assert_eq!(level(wanted), Ok(Some(most)), "{wanted:?}");
        }
        for wanted in ["debgu", "warn,everything", "flowstone_image=loud"] {
            assert!(level(wanted).is_err(), "{wanted:?}");
        }
    }
}
