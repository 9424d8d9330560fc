//! Tests of a panic of the discarding thread.

use flowstone_block::{Op, Reactor, Sector, SectorCount};

use super::*;
use crate::runtime::wakers::QueueWaker;
use flowstone_sim::wait_until;

/// The discard was dropped without a completion, and so was every later one, since no other thread
/// was started. Queue and daemon then waited for ever.
#[test]
fn a_discard_comes_back_when_the_thread_for_discards_has_panicked() {
    let reactor = Reactor::new().unwrap();
    let completions = Arc::new(CompletionQueue::new(QueueWaker::new(&reactor)));
    let discards = Arc::<DiscardCounters>::default();
    let died = Arc::new(AtomicBool::new(false));
    let make_trim = move || {
        let died = Arc::clone(&died);
        let trim = move |_| {
            assert!(died.swap(true, Ordering::Relaxed), "a test's own panic");
            Ok(())
        };
        Ok(Box::new(trim) as Trim)
    };
    let trims = Trims::new(Arc::default(), Arc::clone(&discards), Clock::default(), make_trim);
    for outcome in [Err(Errno::IO), Ok(())] {
        let extent = Extent::new(Sector::new(0), SectorCount::new(8)).unwrap();
        trims.submit(Request::new(Op::Discard(extent), 0), &completions);
        trims.kick();
        wait_until("the discard is back", || completions.has_completions());
        let back = completions.take();
        assert_eq!((back.len(), back[0].outcome), (1, outcome));
        assert_eq!(discards.waiting.load(Ordering::Relaxed), 0);
    }
    trims.stop();
}
