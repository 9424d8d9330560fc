//! The only place where a thread that serves queues sleeps.
//!
//! Such a thread has one [`Reactor`]: one io_uring that all its file channels submit to,
//! descriptors that it watches, and one [`Waker`] by which other threads end its sleep. So one
//! `io_uring_enter` submits for every disk of the thread and waits for all events of all of them,
//! whatever their number.
//!
//! The ring is created with the first [`RingUser`]. A thread whose disks need none (memory file
//! systems, hosts without io_uring) sleeps in `poll(2)` instead.
//!
//! Independent of disks: see docs/reactor.md.

mod event;
#[cfg(feature = "model")]
pub mod model;
mod mutant;
mod next_look;
mod reactor;
mod ring;
mod ring_user;
pub mod sync;
mod waker;
mod watch;

pub use mutant::mutated;
pub use next_look::NextLook;
pub use reactor::Reactor;
pub use ring_user::RingUser;
pub use waker::Waker;
pub use watch::Watch;

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
