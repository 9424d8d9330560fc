//! Lists of folders that the kernel keeps: whether to read one anew costs less than to keep it.
//!
//! The kernel asks for each file apart if it has the name from a list and no attributes any more:
//! they are older than the window, or it has forgotten the file (memory was short). A list that is
//! read anew brings both, a hundred files in an answer. Who reads names alone is better off with
//! the list that the kernel has.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Fewer files are soon asked for. So many are told of only to who wants to know what they are: of
/// the others the kernel takes the names alone after the first answer.
const LARGE: usize = 1024;
/// One file in so many may be forgotten.
const FORGOTTEN: usize = 8;

/// What was told of folders, by their numbers.
#[derive(Default)]
pub struct Lists {
    told: HashMap<u64, List>,
}

struct List {
    /// When it began.
    at: Instant,
    names: usize,
    /// Files that the kernel was told of.
    files: usize,
    forgotten: usize,
}

impl Lists {
    /// The kernel was told of files in a folder of so many names, from the beginning or from where
    /// the last answer ended.
    pub fn told(&mut self, folder: u64, is_first: bool, names: usize, files: usize, now: Instant) {
        if is_first {
            self.told.insert(folder, List { at: now, names, files, forgotten: 0 });
        } else if let Some(list) = self.told.get_mut(&folder) {
            list.files += files;
        }
    }

    /// The kernel has forgotten something in a folder.
    pub fn forgets_in(&mut self, folder: u64) {
        if let Some(list) = self.told.get_mut(&folder) {
            list.forgotten += 1;
        }
    }

    /// The kernel has forgotten a folder.
    pub fn forget(&mut self, folder: u64) {
        self.told.remove(&folder);
    }

    /// Returns whether the kernel is to keep the list that it has.
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

    /// `ls -l` of 100,000 files in the root took 4 s after `drop_caches`: the names were there, and
    /// each file was asked for.
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
        // The names alone.
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
