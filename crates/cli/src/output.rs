//! Output of the commands. Standard output that cannot be written (a full host, a closed pipe) is
//! an error and no panic; nothing depends on standard error.

use std::fmt::Arguments;
use std::io::{self, Write};
use std::sync::OnceLock;

use flowstone_block::{Error, Result};

/// The first error of standard output.
static FAILED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to standard output; takes what `println` takes.
macro_rules! out {
    ($($argument:tt)*) => { $crate::output::print_line(format_args!($($argument)*)) };
}

/// Tells the user something on standard error.
macro_rules! tell {
    ($($argument:tt)*) => { $crate::output::tell_user(format_args!($($argument)*)) };
}

pub(crate) use {out, tell};

pub fn print_line(line: Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout().lock(), "{line}") {
        let _ = FAILED.set(error);
    }
}

pub fn tell_user(line: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "flowstone: {line}");
}

/// Returns an error if something could not be printed. Takes no lock: another thread of a daemon
/// may be blocked in printing.
pub fn end() -> Result<()> {
    let Some(errno) = FAILED.get().map(|error| error.raw_os_error().unwrap_or(libc::EIO)) else {
        return Ok(());
    };
    let advice = "check where the output goes; the command itself has been carried out";
    Err(Error::host("standard output", io::Error::from_raw_os_error(errno), advice))
}
