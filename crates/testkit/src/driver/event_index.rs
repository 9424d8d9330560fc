//! The one formula of EVENT_IDX, for both directions.
//!
//! Indices are free-running 16-bit counters; all comparisons are modulo 2^16.

/// Must the other side be told, when an index moves from `old` to `new` and it asked for `event`?
///
/// It asked to hear of the entry numbered `event`, so the answer is yes exactly when
/// `old <= event < new` in wrapping order.
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    let since_event = new.wrapping_sub(event).wrapping_sub(1);
    since_event < new.wrapping_sub(old)
}
