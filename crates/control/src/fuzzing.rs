//! Entry point for tests and the fuzzer: parses arbitrary requests.

use hyper::Uri;

use super::Command;
use super::paths::Asked;

/// Parses a request as the control socket does and checks: it is either refused as the client's
/// error, or a command that survives a round trip through its own request. Returns the
/// command, if it was one; `None` if HTTP refuses the request.
pub fn request(method: &str, target: &[u8], body: &[u8]) -> Option<Option<Command>> {
    let (method, uri) = (method.parse().ok()?, Uri::try_from(target.to_vec()).ok()?);
    let command = match Command::of(&method, &uri, body) {
        Ok(command) => command,
        Err(refused) => {
            assert!(refused.status().is_client_error(), "{}", refused.error);
            return Some(None);
        }
    };
    let Asked { method, target, body } = command.request();
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    let uri = target.parse().expect("a target is a URI");
    let again = Command::of(&method, &uri, body.as_bytes()).map_err(|refused| refused.error);
    assert_eq!(format!("{:?}", again.as_ref()), format!("{:?}", Ok::<_, ()>(&command)));
    Some(Some(command))
}
