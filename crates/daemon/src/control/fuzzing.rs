//! What clients may send, as tests and the fuzzer make it up.

use hyper::Uri;

use super::Command;
use super::paths::Asked;
use crate::config::{DaemonConfig, limit_of_group};

/// Reads a request as the control socket does: it is refused as the client's mistake, or is a
/// command that is the same when it is asked for again. Returns which; nothing if HTTP does not
/// take the request for one.
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
