//! The interface between a file cache and its policy.

use crate::{Access, FileId};

/// Decides which files a cache holds.
///
/// It adds the files to be evicted to `drops`. The cache writes the changes of such a file to the
/// shared storage, and frees its memory; the policy no longer counts it.
///
/// Laws, for every sequence of calls: the files held are those of `used` calls that returned true,
/// without those that were dropped or forgotten since; `held_bytes` is the sum of their sizes and
/// never above the budget when a call returns.
pub trait Policy: Send {
    /// Records an open of a file. Returns whether it is to be held from now on (it may be already);
    /// drops what is in its way.
    fn used(&mut self, access: &Access, drops: &mut Vec<FileId>) -> bool;

    /// Forgets a file that is gone, or has changed behind the cache: it is no longer held, without
    /// a drop.
    fn forget(&mut self, file: FileId);

    /// Sets the budget in bytes (M_g of the paper).
    fn set_budget(&mut self, bytes: u64, drops: &mut Vec<FileId>);

    /// Ends a time epoch. Most policies do nothing.
    fn epoch(&mut self, _drops: &mut Vec<FileId>) {}

    /// Returns whether a file is held.
    fn holds(&self, file: FileId) -> bool;

    /// Returns the bytes of the files held.
    fn held_bytes(&self) -> u64;
}
