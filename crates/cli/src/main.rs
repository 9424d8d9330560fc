//! `flowstone`: virtual disks served from host files.

use std::process::ExitCode;

fn main() -> ExitCode {
    flowstone_cli::main(flowstone_fileio::open_host_file)
}
