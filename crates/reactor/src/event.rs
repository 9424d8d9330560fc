//! What one thread rings and another one's sleep ends by: an eventfd.

#[cfg(not(feature = "model"))]
pub use self::kernel::Event;
#[cfg(feature = "model")]
pub use crate::model::Event;

#[cfg(not(feature = "model"))]
mod kernel {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    /// Readable from a ring until it is taken.
    pub struct Event(OwnedFd);

    impl Event {
        /// Not readable.
        pub fn new() -> io::Result<Self> {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(Into::into)
        }

        /// Makes it readable.
        pub fn ring(&self) {
            // The counter cannot be full: it is written once per sleep.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Returns whether it was readable. It is not any more.
        pub fn take(&self) -> bool {
            rustix::io::read(&self.0, &mut [0; 8]).is_ok()
        }

        /// In a model, sleeps until it is readable, or for a moment, and returns `true`.
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
