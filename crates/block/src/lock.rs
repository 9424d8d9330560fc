//! Locks whose data every step leaves valid.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a panic of a thread that held it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
