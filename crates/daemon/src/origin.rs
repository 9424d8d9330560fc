//! Where something that is served comes from.

use serde::Serialize;

/// Who has asked for a disk or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration.
    File,
    /// A request on the control socket.
    Api,
}
