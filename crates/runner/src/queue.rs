//! The halves of a split queue (S2.2): the front takes requests from the driver; the back owns the
//! disk's channel and publishes completions.
//!
//! Chains go to the back through a single-producer, single-consumer ring, and return through
//! another when they are done. Each ring has room for all chains that the queue can have in flight,
//! so neither half waits for room.
//!
//! A head is returned before the driver can see that its request is done, and is taken again only
//! when the mark of its last use is cleared in the in-flight log, which [`Link::is_cleared`] tells.
//! Otherwise the mark of a new request could be cleared with those of the old batch, and the
//! request would be lost if the daemon were killed.

mod back;
mod front;
pub mod ring;
mod whole;

use std::any::Any;
use std::sync::{Arc, OnceLock};

use flowstone_block::sync::atomic::{AtomicBool, AtomicU16, Ordering, fence};
use flowstone_block::{BackHalf, FrontHalf, GuestQueue, Request, Throttle, Waker, mutated};

use self::ring::{Consumer, Producer, RingBuffer};
use crate::task::Part;

/// State shared by both threads.
#[derive(Default)]
pub struct Link {
    /// Chains whose marks are cleared, as [`BackHalf::done`] counts them.
    cleared: AtomicU16,
    /// Whether the front waits for returned chains.
    front_waits: AtomicBool,
    /// Set when the front is to take nothing more. The back reads it, since it must not rest while
    /// the front waits for its last chains.
    pub front_leave: OnceLock<Arc<AtomicBool>>,
    /// Waker of the front's thread.
    pub front: OnceLock<Arc<Waker>>,
    /// Waker of the back's thread.
    pub back: OnceLock<Arc<Waker>>,
}

/// A completed chain on its way back to the front.
pub struct Return {
    /// Head of the chain.
    pub head: u16,
    /// The request, if one was submitted to the disk.
    pub request: Option<Box<Request>>,
    /// The back's count of completed chains, this one included.
    pub done: u16,
}

/// A chain on its way to the back.
type Start<Q> = <<Q as GuestQueue>::Front as FrontHalf>::Start;

/// A whole queue on its way to a thread, with the limit of its disk.
pub struct Whole<Q, T> {
    pub queue: Q,
    pub throttle: Arc<T>,
}

/// The front half, on its way to a thread.
pub struct Front<Q: GuestQueue, T> {
    pub front: Q::Front,
    pub throttle: Arc<T>,
    pub starts: Producer<Start<Q>>,
    pub returns: Consumer<Return>,
    pub link: Arc<Link>,
}

/// The back half, on its way to a thread.
pub struct Back<Q: GuestQueue> {
    pub back: Q::Back,
    pub starts: Consumer<Start<Q>>,
    pub returns: Producer<Return>,
    pub link: BackLink,
    /// Queue size.
    pub size: u16,
}

/// Downcasts a part to a whole queue of this type.
pub fn whole<Q: GuestQueue, T: Throttle>(part: Box<dyn Part>) -> Option<Box<Whole<Q, T>>> {
    (part as Box<dyn Any>).downcast().ok()
}

/// Splits a queue that has nothing in flight.
pub fn split<Q: GuestQueue, T>(whole: Whole<Q, T>) -> (Front<Q, T>, Back<Q>) {
    let Whole { queue, throttle } = whole;
    let size = queue.front().size();
    let (front, back) = queue.split();
    let (to_back, starts) = RingBuffer::new(usize::from(size));
    let (to_front, returns) = RingBuffer::new(usize::from(size));
    let link = Arc::new(Link { cleared: AtomicU16::new(back.done()), ..Link::default() });
    let front = Front { front, throttle, starts: to_back, returns, link: Arc::clone(&link) };
    (front, Back { back, starts, returns: to_front, link: BackLink(link), size })
}

/// Joins the halves of a queue; `None` if chains are still in flight between them.
pub fn join<Q: GuestQueue, T>(front: Front<Q, T>, back: Back<Q>) -> Option<Whole<Q, T>> {
    let Front { front, throttle, .. } = front;
    (front.in_flight() == 0).then(|| Whole { queue: Q::join(front, back.back), throttle })
}

impl Link {
    /// Publishes that the marks of `done` chains are cleared.
    pub fn set_cleared(&self, done: u16) {
        self.cleared.store(done, Ordering::Release);
    }

    /// Returns whether the mark of the chain that made the count `done` is cleared.
    pub fn is_cleared(&self, done: u16) -> bool {
        // No more than a ring lies between the two.
        let is_cleared = self.cleared.load(Ordering::Acquire).wrapping_sub(done) < 1 << 15;
        mutated("runner.front.takes-a-head-before-its-mark-is-cleared", is_cleared, true)
    }

    /// Returns whether the front is to take nothing more.
    pub fn front_leaves(&self) -> bool {
        self.front_leave.get().is_some_and(|leave| leave.load(Ordering::Acquire))
    }

    /// Wakes the back: chains have been handed over.
    pub fn wake_back(&self) {
        let wakes = mutated("runner.front.does-not-wake-the-back", true, false);
        if wakes {
            self.back.get().inspect(|waker| waker.wake());
        }
    }

    /// Announces that the front is about to sleep and needs returned chains to continue. Its last
    /// look, behind the fence of the sleep, sees chains that are returned before the back sees
    /// this.
    pub fn begin_wait(&self) {
        self.front_waits.store(true, Ordering::Relaxed);
    }

    /// Withdraws the announcement.
    pub fn end_wait(&self) {
        self.front_waits.store(false, Ordering::Relaxed);
    }

    /// Returns whether the announcement stands. For the front itself.
    pub fn front_waits(&self) -> bool {
        self.front_waits.load(Ordering::Relaxed)
    }

    /// Wakes the front if it waits: chains were returned, or the back is gone.
    pub fn wake_front(&self) {
        // Either this sees that the front waits, or the front sees the returned chains.
        let fences = mutated("runner.link.wakes-the-front-without-fence", true, false);
        if fences {
            fence(Ordering::SeqCst);
        }
        let waits = self.front_waits.load(Ordering::Relaxed);
        let waits = mutated("runner.back.does-not-wake-the-front", waits, false);
        if waits {
            self.front.get().inspect(|waker| waker.wake());
        }
    }
}

/// The back's handle of the link: dropping it wakes the front.
pub struct BackLink(pub Arc<Link>);

impl Drop for BackLink {
    /// Also runs if the back's thread has panicked: the front must not wait for it.
    fn drop(&mut self) {
        self.0.wake_front();
    }
}

#[cfg(feature = "model")]
#[cfg(test)]
mod models;
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use flowstone_block::SectorCount;
    use flowstone_frontend::vhost_user::fuzzing::{log_for, queue_over};
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::fake_guest::Unlimited;

    #[test]
    fn marks_are_cleared_up_to_the_used_index_also_across_its_wrap() {
        let link = Link::default();
        for (cleared, used, is_cleared) in
            [(5, 5, true), (5, 4, true), (5, 6, false), (1, 0xffff, true), (0xffff, 1, false)]
        {
            link.set_cleared(cleared);
            assert_eq!(link.is_cleared(used), is_cleared, "{cleared} {used}");
        }
    }

    /// A queue is cut in the midst of its life: marks of what is done next are not cleared,
    /// wherever its ring has got to.
    #[test]
    fn a_queue_that_is_cut_has_marks_cleared_up_to_where_it_is() {
        const SIZE: u16 = 16;
        for used in [0, 1, 40_000, u16::MAX] {
            let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
            memory.set_len(0x1000).unwrap();
            let used_at = (16 * u64::from(SIZE) + 6 + 2 * u64::from(SIZE)).next_multiple_of(4);
            memory.write_all_at(&used.to_le_bytes(), used_at + 2).unwrap();
            let kick = File::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
            let (disk, log) = (SectorCount::new(8), log_for(SIZE).unwrap());
            let queue = queue_over(memory, 0x1000, SIZE, true, kick, disk, &log).unwrap();
            let (front, _back) = split(Whole { queue, throttle: Arc::new(Unlimited) });
            assert!(front.link.is_cleared(used));
            assert!(!front.link.is_cleared(used.wrapping_add(1)), "{used}");
        }
    }
}
