//! Host services of the daemon besides images: unix sockets and their peers, and what kind of file
//! system a file lies on.

mod file_system;
mod peer;
mod socket;
mod socket_access;

pub use file_system::may_ask_a_server;
pub use peer::{peer_called, peer_of};
pub use socket::{BoundSocket, bind_socket};
pub use socket_access::{SocketAccess, SocketGroup, SocketMode};
