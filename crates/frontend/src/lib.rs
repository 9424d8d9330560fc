//! Where requests come in. The only crate that knows virtio.
//!
//! [`vhost_user`] serves a disk to a virtual machine monitor over a unix socket; it turns
//! descriptor chains into [`Request`](flowstone_block::Request)s and completions into used
//! entries. Who runs the queues is not its business: see
//! [`QueueRunner`](flowstone_block::QueueRunner).

pub mod vhost_user;
