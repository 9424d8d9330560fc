//! `flowstone serve`: from what was typed to what it means.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use flowstone_block::{Error, Result};
use flowstone_daemon::{CacheConfig, Config, DiskConfig, PollersConfig};
use flowstone_fileio::FileOpener;
use tracing_subscriber::EnvFilter;

use crate::args::Serve;

pub fn run(args: Serve, opener: FileOpener) -> Result<ExitCode> {
    start_log();
    flowstone_daemon::serve(config(args)?, opener)?;
    Ok(ExitCode::SUCCESS)
}

/// Logs to standard error; FLOWSTONE_LOG selects, e.g. `debug` or `flowstone_frontend=debug`.
fn start_log() {
    let filter = EnvFilter::try_from_env("FLOWSTONE_LOG").unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(wants_colours())
        // A log that cannot be written (its reader or terminal is gone) is reported to standard
        // error, which fails too, and that would be a panic of the thread that wrote the line.
        .log_internal_errors(false)
        .init();
}

/// On a terminal, unless NO_COLOR (no-color.org) says not to.
fn wants_colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}

fn config(args: Serve) -> Result<Config> {
    if let Some(file) = &args.config {
        return Config::read(file);
    }
    let control = args.control.clone();
    let policy = args.cache_policy.unwrap_or_default();
    let cache = args.cache.map(|size| CacheConfig::new(size, args.cache_min, policy));
    let cache = cache
        .transpose()
        .map_err(|why| Error::invalid("cache", why, "use a smaller --cache-min"))?;
    let pollers = PollersConfig {
        choice: args.pollers.unwrap_or_default(),
        cpus: args.poller_cpus.clone().unwrap_or_default(),
        budget: args.cpu_budget,
    };
    Config::single(control, cache, pollers, disk(args))
}

fn disk(args: Serve) -> DiskConfig {
    let named_after = |image: &PathBuf| DiskConfig::name_from(image);
    let default_name = || args.image.as_ref().map_or_else(|| "disk".into(), named_after);
    let name = args.name.unwrap_or_else(default_name);
    let socket = args.socket.expect("clap demands --socket where there is no --config");
    let defaults = DiskConfig::new(name, socket);
    DiskConfig {
        serial: args.serial,
        socket_group: args.socket_group,
        socket_mode: args.socket_mode,
        image: args.image,
        backend: args.backend,
        format: args.format,
        queues: args.queues.unwrap_or(defaults.queues),
        cpus: args.cpus.unwrap_or_default(),
        pipeline: args.pipeline.unwrap_or_default(),
        poll: args.poll.unwrap_or_default(),
        discard: args.discard.unwrap_or_default(),
        detect_zeroes: args.detect_zeroes.unwrap_or_default(),
        journal_ioprio: args.journal_ioprio.unwrap_or(defaults.journal_ioprio),
        pdc: args.pdc.unwrap_or_default(),
        limit: args.limit.unwrap_or_default(),
        vm: args.vm.unwrap_or_default(),
        engine: args.engine.unwrap_or_default(),
        direct: args.direct.unwrap_or_default(),
        resort: args.resort.unwrap_or_default(),
        readonly: args.readonly,
        backing_dirs: args.backing_dirs,
        layers: args.layers,
        ..defaults
    }
}
