//! Host services of the daemon besides images: unix sockets, and their peers.

mod peer;
mod socket;
mod socket_access;

pub use peer::{peer_called, peer_of};
pub use socket::{BoundSocket, bind_socket};
pub use socket_access::{SocketAccess, SocketGroup, SocketMode};
