//! Models of when the front may take a head again, in every interleaving of the two threads. A mark
//! of the in-flight log is a cell here, so loom reports two threads that use it at once. (The log
//! itself is in memory that the monitor maps, too, where loom sees nothing.)

use flowstone_block::model::{UnsafeCell, check, spawn};
use flowstone_block::sync::thread::yield_now;

use super::*;

/// The in-flight mark of the only head.
struct Mark(UnsafeCell<bool>);

// SAFETY: loom checks that no two threads use it at once.
unsafe impl Sync for Mark {}

impl Mark {
    fn set(&self, to: bool) {
        // SAFETY: as above.
        self.0.with_mut(|mark| unsafe {
            assert!(*mark != to, "a new mark was cleared, or an old one was not");
            *mark = to;
        });
    }
}

#[test]
fn a_head_is_taken_again_when_its_mark_is_cleared() {
    check("halves, marks", 3, || {
        let link = Arc::new(Link::default());
        let mark = Arc::new(Mark(UnsafeCell::new(true)));
        let (mut to_front, mut returns) = RingBuffer::new(1);
        let (back_link, cleared) = (Arc::clone(&link), Arc::clone(&mark));
        let back = spawn(move || {
            // The head is returned first.
            assert!(to_front.push(Return { head: 0, request: None, done: 1 }).is_ok());
            cleared.set(false);
            back_link.set_cleared(1);
        });
        let done = loop {
            match returns.pop() {
                Ok(done) => break done,
                Err(_) => yield_now(),
            }
        };
        while !link.is_cleared(done.done) {
            yield_now();
        }
        mark.set(true);
        back.join().unwrap();
    });
}
