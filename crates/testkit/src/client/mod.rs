//! A vhost-user-blk front end without a virtual machine.
//!
//! `session` is the protocol on the socket, `ring` a queue with its eventfds, `config` the device's
//! configuration space, `request` the requests, `client` combines them behind blocking calls. A
//! client that lost its backend can `reconnect` as QEMU does, keeping memory, rings and inflight
//! region.

mod backend_channel;
mod blocking;
mod buffers;
mod completion;
mod config;
mod core;
mod deadline;
mod event;
mod inflight;
mod options;
mod request;
mod request_queue;
mod ring;
mod session;
#[cfg(test)]
mod tests;

pub use self::core::Client;
pub use backend_channel::BackendChannel;
pub use buffers::Shape;
pub use completion::{Completion, Ticket};
pub use config::{BlkConfig, WCE_OFFSET};
pub use event::Event;
pub(crate) use event::wait_readable;

pub use inflight::InflightArea;
pub use options::{ClientOptions, MemoryMessage};
pub use request::{Request, Status};
pub use ring::{Ring, RingShare};
pub use session::{Negotiated, Session};
pub use vhost::vhost_user::message::VhostUserProtocolFeatures as ProtocolFeatures;
