//! The seam between a file cache and what decides for it.

use crate::{Access, FileId};

/// What the cache is to do with a file that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Write its changes to the shared storage. A `Drop` of it follows.
    WriteBack(FileId),
    /// Give its memory back. The policy does not count it any more.
    Drop(FileId),
}

/// Decides which files a cache holds.
///
/// Laws, for every sequence of calls: the files held are those of `used` calls that returned true,
/// without those that were dropped or forgotten since; `held_bytes` is the sum of their sizes and
/// never above the budget when a call returns.
pub trait Policy: Send {
    /// A file is opened. Returns whether it is to be held from now on (it may be already); what has
    /// to go for that is ordered.
    fn used(&mut self, access: &Access, orders: &mut Vec<Order>) -> bool;

    /// A file is gone, or has changed behind the cache: it is held no more, without an order.
    fn forget(&mut self, file: FileId);

    /// The cache may have so many bytes from now on (M_g of the paper).
    fn set_budget(&mut self, bytes: u64, orders: &mut Vec<Order>);

    /// A time epoch ends. Most policies have nothing to do then.
    fn epoch(&mut self, _orders: &mut Vec<Order>) {}

    /// Returns whether a file is held.
    fn holds(&self, file: FileId) -> bool;

    /// Bytes of the files held.
    fn held_bytes(&self) -> u64;
}
