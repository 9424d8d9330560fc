//! Entry point for the fuzzer: requests as clients may send them.

use flowstone_control::{Command, fuzzing};

use crate::config::{DaemonConfig, limit_of_group};

/// Parses a request as the control socket does, and checks its keys. Returns whether it was a
/// command; `None` if HTTP refuses the request.
pub fn request(method: &str, target: &[u8], body: &[u8]) -> Option<bool> {
    let command = fuzzing::request(method, target, body)?;
    match command {
        Some(Command::Add(ref name, ref keys)) => {
            drop(DaemonConfig::default().disk(name, keys.clone()));
        }
        Some(Command::AddGroup(ref name, ref keys)) => drop(limit_of_group(name, keys.clone())),
        _ => {}
    }
    Some(command.is_some())
}
