//! Host services of the daemon besides images: unix sockets, their peers and the VMs that these
//! run, the daemon's own process, directories, paths, kinds of file systems, and the limit of open
//! files.

mod file_system;
mod folder;
pub mod open_files;
mod own_process;
mod peer;
mod real_path;
mod socket;
mod socket_access;
mod vm_process;

pub use file_system::may_ask_a_server;
pub use folder::{Folder, HostFolder};
pub use own_process::OwnProcess;
pub use peer::{peer_called, peer_of};
pub use real_path::real_path;
pub use socket::{BoundSocket, bind_socket};
pub use socket_access::{SocketAccess, SocketGroup, SocketMode};
pub use vm_process::VmProcess;
