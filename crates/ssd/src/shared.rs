//! State shared by all users of a drive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::state::State;
use crate::time::ModelTime;

/// State shared by all users of a drive.
pub struct Shared {
    pub time: Arc<ModelTime>,
    state: Mutex<State>,
}

impl Shared {
    pub fn new(time: Arc<ModelTime>, state: State) -> Self {
        Self { time, state: Mutex::new(state) }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
