//! Where requests come in. The only crate that knows virtio.
//!
//! [`vhost_user`] serves a disk to a virtual machine monitor over a unix socket; it turns
//! descriptor chains into [`Request`](flowstone_block::Request)s and completions into used
//! entries. Who runs the queues is not its business: see [`vhost_user::QueueRunner`].

mod socket;
mod socket_access;
pub mod vhost_user;

pub use socket::{BoundSocket, bind_socket};
pub use socket_access::{SocketAccess, SocketGroup, SocketMode};
