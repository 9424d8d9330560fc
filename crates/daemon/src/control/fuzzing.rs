//! Entry point for tests and the fuzzer: parses arbitrary requests.

use hyper::Uri;

use super::Command;
use super::paths::Asked;
use crate::config::{DaemonConfig, limit_of_group};

/// Parses a request as the control socket does and checks: it is either refused as the client's
/// error, or a command that survives a round trip through its own request. Returns whether it was a
/// command; `None` if HTTP refuses the request.
pub fn request(method: &str, target: &[u8], body: &[u8]) -> Option<bool> {
    let (method, uri) = (method.parse().ok()?, Uri::try_from(target.to_vec()).ok()?);
    let command = match Command::of(&method, &uri, body) {
        Ok(command) => command,
        Err(refused) => {
            assert!(refused.status().is_client_error(), "{}", refused.error);
            return Some(false);
        }
    };
    let Asked { method, target, body } = command.request();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let uri = target.parse().expect("a target is a URI");
    let again = Command::of(&method, &uri, body.as_bytes()).map_err(|refused| refused.error);
    assert_eq!(format!("{:?}", again.as_ref()), format!("{:?}", Ok::<_, ()>(&command)));
    match command {
        Command::Add(name, keys) => drop(DaemonConfig::default().disk(&name, keys)),
        Command::AddGroup(name, keys) => drop(limit_of_group(&name, keys)),
        _ => {}
    }
    Some(true)
}
