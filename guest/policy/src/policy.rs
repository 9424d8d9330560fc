//! The interface between a file cache and its policy.

use crate::{Access, FileId};

/// An order to the cache about a file that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Write its changes to the shared storage. A `Drop` of it follows.
    WriteBack(FileId),
    /// Free its memory. The policy no longer counts it.
    Drop(FileId),
}

/// Decides which files a cache holds.
///
/// Laws, for every sequence of calls: the files held are those of `used` calls that returned true,
/// without those that were dropped or forgotten since; `held_bytes` is the sum of their sizes and
/// never above the budget when a call returns.
pub trait Policy: Send {
    /// Records an open of a file. Returns whether it is to be held from now on (it may be already);
    /// orders the evictions needed for that.
    fn used(&mut self, access: &Access, orders: &mut Vec<Order>) -> bool;

    /// Forgets a file that is gone, or has changed behind the cache: it is no longer held, without
    /// an order.
    fn forget(&mut self, file: FileId);

    /// Sets the budget in bytes (M_g of the paper).
    fn set_budget(&mut self, bytes: u64, orders: &mut Vec<Order>);

    /// Ends a time epoch. Most policies do nothing.
    fn epoch(&mut self, _orders: &mut Vec<Order>) {}

    /// Returns whether a file is held.
    fn holds(&self, file: FileId) -> bool;

    /// Returns the bytes of the files held.
    fn held_bytes(&self) -> u64;
}
