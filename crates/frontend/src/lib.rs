//! The front end: serves disks over virtio. The only crate that knows virtio.
//!
//! [`vhost_user`] serves a disk to a virtual machine monitor over a unix socket; it turns
//! descriptor chains into [`Request`](flowstone_block::Request)s and completions into used entries.
//! Its queues are run by a [`QueueRunner`](flowstone_block::QueueRunner).

pub mod vhost_user;
