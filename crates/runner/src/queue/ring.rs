//! The single-producer, single-consumer ring that passes chains between the halves of a queue: that
//! of the crate `rtrb`; in loom models, a stand-in that loads and stores its indices at the same
//! places with the same orderings, visible to loom.

#[cfg(feature = "model")]
pub use self::stand_in::{Consumer, Producer, RingBuffer};
#[cfg(not(feature = "model"))]
pub use rtrb::{Consumer, Producer, RingBuffer};

/// A stand-in for the part of `rtrb` 0.4 that the halves use.
#[cfg(feature = "model")]
mod stand_in {
    use std::marker::PhantomData;
    use std::sync::Arc;

    use flowstone_block::model::UnsafeCell;
    use flowstone_block::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    struct Shared<T> {
        slots: Vec<UnsafeCell<Option<T>>>,
        head: AtomicUsize,
        tail: AtomicUsize,
        abandoned: AtomicBool,
    }

    // SAFETY: a slot is used by the producer before `tail` has passed it, and by the consumer then.
    // (Loom checks that.)
    unsafe impl<T: Send> Sync for Shared<T> {}
    // SAFETY: what is in the slots may be sent.
    unsafe impl<T: Send> Send for Shared<T> {}

    /// Constructor of rings.
    pub struct RingBuffer<T>(PhantomData<T>);

    /// The producing end.
    pub struct Producer<T> {
        shared: Arc<Shared<T>>,
        tail: usize,
    }

    /// The consuming end.
    pub struct Consumer<T> {
        shared: Arc<Shared<T>>,
        head: usize,
        /// Tail of the producer as last loaded.
        seen: std::cell::Cell<usize>,
    }

    impl<T> RingBuffer<T> {
        /// Makes a ring and returns its two ends.
        #[expect(clippy::new_ret_no_self, reason = "as in rtrb")]
        pub fn new(capacity: usize) -> (Producer<T>, Consumer<T>) {
            let shared = Arc::new(Shared {
                slots: (0..capacity).map(|_| UnsafeCell::new(None)).collect(),
                head: AtomicUsize::new(0),
                tail: AtomicUsize::new(0),
                abandoned: AtomicBool::new(false),
            });
            let producer = Producer { shared: Arc::clone(&shared), tail: 0 };
            (producer, Consumer { shared, head: 0, seen: std::cell::Cell::new(0) })
        }
    }

    impl<T> Producer<T> {
        /// Appends a value. The caller guarantees room, so the consumer's index is not loaded
        /// (`rtrb` loads it only when the ring looks full).
        pub fn push(&mut self, value: T) -> Result<(), T> {
            let slot = &self.shared.slots[self.tail % self.shared.slots.len()];
            // SAFETY: the consumer has not seen the new tail.
            slot.with_mut(|slot| unsafe { *slot = Some(value) });
            self.tail += 1;
            self.shared.tail.store(self.tail, Ordering::Release);
            Ok(())
        }

        /// Returns whether the other end has been dropped.
        pub fn is_abandoned(&self) -> bool {
            self.shared.abandoned.load(Ordering::Acquire)
        }
    }

    impl<T> Consumer<T> {
        /// Removes and returns the oldest value.
        pub fn pop(&mut self) -> Result<T, ()> {
            if self.is_empty() {
                return Err(());
            }
            let slot = &self.shared.slots[self.head % self.shared.slots.len()];
            // SAFETY: the producer has filled it, and the new tail was seen.
            let value = slot.with_mut(|slot| unsafe { (*slot).take() });
            self.head += 1;
            self.shared.head.store(self.head, Ordering::Release);
            value.ok_or(())
        }

        /// Number of values in the ring.
        pub fn slots(&self) -> usize {
            self.seen.set(self.shared.tail.load(Ordering::Acquire));
            self.seen.get() - self.head
        }

        /// Returns whether the ring is empty.
        pub fn is_empty(&self) -> bool {
            self.seen.get() == self.head && self.slots() == 0
        }
    }

    impl<T> Drop for Producer<T> {
        fn drop(&mut self) {
            self.shared.abandon();
        }
    }

    impl<T> Drop for Consumer<T> {
        fn drop(&mut self) {
            self.shared.abandon();
        }
    }

    impl<T> Shared<T> {
        fn abandon(&self) {
            // A model that has panicked is over: loom takes no more steps.
            if !std::thread::panicking() {
                self.abandoned.swap(true, Ordering::Release);
            }
        }
    }
}
