//! What the daemon asks of its host beside images: unix sockets, and who is at their other end.

mod peer;
mod socket;
mod socket_access;

pub use peer::{peer_called, peer_of};
pub use socket::{BoundSocket, bind_socket};
pub use socket_access::{SocketAccess, SocketGroup, SocketMode};
