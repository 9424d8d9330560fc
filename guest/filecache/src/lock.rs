//! Locks that outlive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a thread that panicked has left is as good as before: each change is one step.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
