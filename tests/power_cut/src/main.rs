//! `flowstone` for tests: what it serves is behind a drive's write cache, so `kill -9` is a power
//! cut.

use std::process::ExitCode;

fn main() -> ExitCode {
    flowstone_cli::main(flowstone_sim::open_volatile)
}
