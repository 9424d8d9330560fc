//! `flowstone-guest`: the guest's half.

use std::process::ExitCode;

fn main() -> ExitCode {
    flowstone_guest::main()
}
