//! How much address space guests' memory may take of the process.
//!
//! A file of a monitor's may be as long as it likes and take no memory: some of them would use up
//! what the process can map, and the next allocation for any disk fails.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

/// What a process has on the narrowest machines that we run on, 47 bits.
const ADDRESS_SPACE: u64 = 1 << 47;

/// What all guests have now.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Address space that is taken, until this is dropped.
pub struct Space(u64);

impl Space {
    /// Takes so many bytes for a guest that has `has` already.
    pub fn take(bytes: u64, has: u64) -> io::Result<Self> {
        Self::take_of(&TAKEN, whole(), bytes, has)
    }

    /// A guest may have half of what the process has, and all of them three quarters.
    fn take_of(taken: &AtomicU64, whole: u64, bytes: u64, has: u64) -> io::Result<Self> {
        let (mine, all) = (whole / 2, whole / 4 * 3);
        if has.checked_add(bytes).is_none_or(|mapped| mapped > mine) {
            return Err(too_much(bytes, "one disk's guest", mine));
        }
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= all);
        let added = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        added.map(|_| Self(bytes)).map_err(|_| too_much(bytes, "all guests", all))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        TAKEN.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// What the process may map.
fn whole() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX).min(ADDRESS_SPACE)
}

fn too_much(bytes: u64, whose: &str, most: u64) -> io::Error {
    let gib = |bytes: u64| bytes >> 30;
    io::Error::other(format!(
        "{} GiB more of guest memory do not fit into the {} GiB of address space that {whose} may have; \
         raise RLIMIT_AS if it is limited, or serve the guest from another daemon",
        gib(bytes),
        gib(most)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One monitor with files of petabytes left nothing for the others.
    #[test]
    fn one_guest_has_half_and_all_have_three_quarters() {
        let taken = AtomicU64::new(0);
        let take = |bytes, has| {
            let outcome = Space::take_of(&taken, 1000, bytes, has);
            // Of the real count it took nothing.
            outcome.map(std::mem::forget).map_err(|error| error.to_string())
        };
        assert!(take(501, 0).unwrap_err().contains("one disk"));
        assert!(take(400, 0).is_ok() && take(101, 400).is_err() && take(100, 400).is_ok());
        assert!(take(250, 0).is_ok());
        assert!(take(1, 0).unwrap_err().contains("all guests"));
        assert!(take(u64::MAX, 1).is_err());
        assert_eq!(taken.into_inner(), 750);
    }

    #[test]
    fn what_was_taken_comes_back() {
        let before = Space::take(1 << 20, 0).unwrap();
        assert_eq!(before.0, 1 << 20);
        assert!(TAKEN.load(Ordering::Acquire) >= 1 << 20);
        drop(before);
        assert!(Space::take(ADDRESS_SPACE, 0).is_err());
    }
}
