//! The EVENT_IDX formula, used in both directions.
//!
//! Indices are free-running 16-bit counters; all comparisons are modulo 2^16.

/// Returns whether the other side must be notified when an index moves from `old` to `new` and it
/// asked for `event`.
///
/// It asked to be notified of the entry numbered `event`, so this is the case exactly when `old <=
/// event < new` in wrapping order.
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    let since_event = new.wrapping_sub(event).wrapping_sub(1);
    since_event < new.wrapping_sub(old)
}
