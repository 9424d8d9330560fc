//! An event that one thread signals and that ends another one's sleep: an eventfd.

#[cfg(not(feature = "model"))]
pub use self::kernel::Event;
#[cfg(feature = "model")]
pub use crate::model::Event;

#[cfg(not(feature = "model"))]
mod kernel {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    /// An event that a ring can poll; readable until it is taken.
    pub struct Event(OwnedFd);

    impl Event {
        /// Makes an event that is not readable.
        pub fn new() -> io::Result<Self> {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(Into::into)
        }

        /// Makes it readable.
        pub fn ring(&self) {
            // The counter cannot overflow: it is written once per sleep.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Clears the event. Returns whether it was readable.
        pub fn take(&self) -> bool {
            rustix::io::read(&self.0, &mut [0; 8]).is_ok()
        }

        /// In a model, sleeps until the event is readable, or for a moment, and returns `true`.
        #[inline(always)]
        pub fn sleep_in_model(&self, _for_a_moment: bool) -> bool {
            false
        }
    }

    impl AsFd for Event {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}
