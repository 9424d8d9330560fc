//! A hold of the log's lock.

use std::ops::{Deref, DerefMut};

use flowstone_block::sync::MutexGuard;
#[cfg(debug_assertions)]
use flowstone_log_store::segments::LOOK_MOST;

use super::append::AppendState;

/// The state of the log while its lock is held. At its end, debug builds check that few segments
/// were looked at.
pub struct Hold<'a>(MutexGuard<'a, AppendState>);

impl<'a> Hold<'a> {
    pub fn begin(state: MutexGuard<'a, AppendState>) -> Self {
        #[cfg(debug_assertions)]
        let state = {
            let mut state = state;
            // An open looks at all of them.
            state.segments_mut().take_looks();
            state
        };
        Self(state)
    }
}

impl Deref for Hold<'_> {
    type Target = AppendState;

    fn deref(&self) -> &AppendState {
        &self.0
    }
}

impl DerefMut for Hold<'_> {
    fn deref_mut(&mut self) -> &mut AppendState {
        &mut self.0
    }
}

#[cfg(debug_assertions)]
impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let looks = self.0.segments_mut().take_looks();
        let is_few = looks <= LOOK_MOST || std::thread::panicking();
        assert!(is_few, "{looks} segments in one hold of the log's lock");
    }
}
