//! The ring that takes chains from one half of a queue to the other: one producer, one consumer. It
//! is that of the crate `rtrb`; in a model, one that stores and loads its indices in the same
//! places and orders, where loom sees it.

#[cfg(feature = "model")]
pub use self::stand_in::{Consumer, Producer, RingBuffer};
#[cfg(not(feature = "model"))]
pub use rtrb::{Consumer, Producer, RingBuffer};

/// What `rtrb` 0.4 does, as far as the halves use it.
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

    /// Makes rings.
    pub struct RingBuffer<T>(PhantomData<T>);

    /// The end that puts in.
    pub struct Producer<T> {
        shared: Arc<Shared<T>>,
        tail: usize,
    }

    /// The end that takes out.
    pub struct Consumer<T> {
        shared: Arc<Shared<T>>,
        head: usize,
        /// As far as it has seen the other end come.
        seen: std::cell::Cell<usize>,
    }

    impl<T> RingBuffer<T> {
        /// Both ends of a ring.
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
        /// Puts a value in. (There is room: `rtrb` looks at the other end only when it has found
        /// none.)
        pub fn push(&mut self, value: T) -> Result<(), T> {
            let slot = &self.shared.slots[self.tail % self.shared.slots.len()];
            // SAFETY: the consumer has not seen the new tail.
            slot.with_mut(|slot| unsafe { *slot = Some(value) });
            self.tail += 1;
            self.shared.tail.store(self.tail, Ordering::Release);
            Ok(())
        }

        /// Whether the other end is gone.
        pub fn is_abandoned(&self) -> bool {
            self.shared.abandoned.load(Ordering::Acquire)
        }
    }

    impl<T> Consumer<T> {
        /// Takes the oldest value out.
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

        /// How many values are there.
        pub fn slots(&self) -> usize {
            self.seen.set(self.shared.tail.load(Ordering::Acquire));
            self.seen.get() - self.head
        }

        /// Whether none is there.
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
