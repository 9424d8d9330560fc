//! Mutexes that survive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, ignoring poison: each change under a lock is one step, so a panic leaves no
/// inconsistency.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
