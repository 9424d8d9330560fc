//! Folder lists cached by the kernel: decides whether reading a list again is cheaper than keeping
//! it.
//!
//! If the kernel has a name from a list but no attributes, it asks for each file separately: the
//! attributes are older than the window, or the kernel has forgotten the file (memory pressure).
//! Reading the list again brings both, a hundred files per reply. A program that reads only names
//! is better off with the cached list.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Least number of told files that shows that a list's reader wants attributes: for others the
/// kernel takes only names after the first reply. Smaller lists are quickly asked for file by file.
const LARGE: usize = 1024;
/// Divisor: this part of the files may be forgotten.
const FORGOTTEN: usize = 8;

/// Lists told to the kernel, by folder number.
#[derive(Default)]
pub struct Lists {
    told: HashMap<u64, List>,
}

struct List {
    /// The time at which it was begun.
    at: Instant,
    names: usize,
    /// Number of files that the kernel was told of.
    files: usize,
    forgotten: usize,
}

impl Lists {
    /// Records that the kernel was told of `files` files in a folder of `names` names, from the
    /// beginning or from the end of the last reply.
    pub fn told(&mut self, folder: u64, is_first: bool, names: usize, files: usize, now: Instant) {
        if is_first {
            self.told.insert(folder, List { at: now, names, files, forgotten: 0 });
        } else if let Some(list) = self.told.get_mut(&folder) {
            list.files += files;
        }
    }

    /// Records that the kernel has forgotten a file of a folder.
    pub fn forgets_in(&mut self, folder: u64) {
        if let Some(list) = self.told.get_mut(&folder) {
            list.forgotten += 1;
        }
    }

    /// Records that the kernel has forgotten a folder.
    pub fn forget(&mut self, folder: u64) {
        self.told.remove(&folder);
    }

    /// Returns whether the kernel is to keep its cached list.
    pub fn serves(&self, folder: u64, window: Duration, now: Instant) -> bool {
        self.told.get(&folder).is_none_or(|list| {
            let is_of_names = list.files < LARGE.max(list.names / 2);
            let is_young = now.saturating_duration_since(list.at) < window;
            is_of_names || (is_young && list.forgotten * FORGOTTEN < list.files)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(3);

    /// `ls -l` of 100,000 files in the root took 4 s after `drop_caches`: the names were cached,
    /// and the kernel asked for each file.
    #[test]
    fn a_list_whose_files_are_forgotten_is_read_anew() {
        let (mut lists, now) = (Lists::default(), Instant::now());
        assert!(lists.serves(1, WINDOW, now), "nothing is known of it");
        lists.told(1, true, 4000, 100, now);
        (0..39).for_each(|_| lists.told(1, false, 4000, 100, now));
        (0..499).for_each(|_| lists.forgets_in(1));
        assert!(lists.serves(1, WINDOW, now));
        lists.forgets_in(1);
        assert!(!lists.serves(1, WINDOW, now));
        lists.told(1, true, 4000, 100, now);
        assert!(lists.serves(1, WINDOW, now), "it is being read");
    }

    #[test]
    fn a_list_whose_attributes_are_old_is_read_anew() {
        let (mut lists, now) = (Lists::default(), Instant::now());
        lists.told(1, true, 4000, 4000, now);
        lists.told(2, true, 100, 100, now);
        // Only the names.
        lists.told(3, true, 100_000, 1024, now);
        let serves = |lists: &Lists, after| {
            [1, 2, 3].map(|folder| lists.serves(folder, WINDOW, now + after))
        };
        assert_eq!(serves(&lists, WINDOW / 2), [true; 3]);
        assert_eq!(serves(&lists, WINDOW), [false, true, true]);
        lists.forget(1);
        assert!(lists.serves(1, WINDOW, now + WINDOW));
    }
}
