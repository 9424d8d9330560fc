//! `flowstone events`

use std::io::{self, ErrorKind, Write};

use flowstone_block::{Error, Result};
use flowstone_control::{Client, Received};

use super::only_print_from_now_on;
use crate::args::Daemon;

pub fn run(daemon: &Daemon) -> Result<()> {
    let received = Client::connect(&daemon.control)?.events()?;
    only_print_from_now_on();
    let name = format!("control socket {}", daemon.control.display());
    let error = print(received);
    Err(Error::host(name, error, "what happens from now on is not seen; ask the next daemon"))
}

/// Prints events until the daemon ends. Returns the final error.
fn print(mut received: Received) -> io::Error {
    loop {
        let printed = match received.wait() {
            Ok(Some(lines)) => io::stdout().lock().write_all(&lines),
            Ok(None) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the daemon hung up")),
            Err(error) => Err(error),
        };
        let printed = printed.and_then(|()| io::stdout().flush());
        if let Err(error) = printed {
            return error;
        }
    }
}
