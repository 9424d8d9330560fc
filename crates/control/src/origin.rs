//! Origin of disks and groups.

use serde::Serialize;

/// Origin of a disk or a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration.
    File,
    /// A request on the control socket.
    Api,
}
