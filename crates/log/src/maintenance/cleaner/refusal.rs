//! For tests: a host that gives the cleaners of this thread memory for a few records only.

use std::cell::Cell;

thread_local! {
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Such a host, until it is dropped.
pub struct Refusal(());

/// The host gives memory for so many records, and none to cut buffers from.
pub fn give(records: u32) -> Refusal {
    LEFT.set(Some(records));
    Refusal(())
}

impl Refusal {
    /// Returns how many more it would give.
    pub fn left(&self) -> u32 {
        LEFT.get().unwrap_or_default()
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        LEFT.set(None);
    }
}

pub fn is_on() -> bool {
    LEFT.get().is_some()
}

/// Takes the memory of a record; `false` if it is refused.
pub fn takes_one() -> bool {
    let Some(left) = LEFT.get() else { return true };
    LEFT.set(Some(left.saturating_sub(1)));
    left > 0
}
