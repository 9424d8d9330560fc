//! The one place where a thread sleeps.
//!
//! A thread that serves queues has one [`Reactor`]: one io_uring that all its file channels submit
//! to, descriptors that it watches, and one [`Waker`] by which other threads end its sleep. So one
//! `io_uring_enter` submits for every disk of the thread and waits for everything that any of them
//! waits for. How many there are does not matter.
//!
//! The ring is made when the first [`RingUser`] asks for it. A thread whose disks need none (memory
//! file systems, hosts without io_uring) sleeps in `poll(2)` instead.
//!
//! It knows nothing of disks: see docs/reactor.md.

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

pub use mutant::mutant;
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
