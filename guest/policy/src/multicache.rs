//! The paper's rule (S5.2, S5.3), literally: files with a usage count of at least USAGE_THRESHOLD
//! are held, in a read map and a write map; the newest of each (windows A and C) stay, the others
//! (B and D) are candidates; at each epoch D is written back and dropped, then B is dropped, until
//! at most MEM_THRESHOLD of the budget is held.
//!
//! Left open by the paper, and chosen here: maps are in LRU order; A is the newest three quarters
//! of the budget in the read map, C the newest quarter in the write map; candidates are evicted
//! oldest first; a file that is written moves to the write map and returns to the read map when it
//! has been written back and is read again; a file that does not fit between two epochs evicts
//! candidates at once, or is not held.

use crate::ordered::Ordered;
use crate::{Access, FileId, Policy, Use};

/// The paper's thresholds and window sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Windows {
    /// Files with a lower usage count are not held.
    pub usage_threshold: u32,
    /// Part of the budget above which candidates are evicted.
    pub mem_threshold: f64,
    /// Window A as a part of the budget.
    pub read_part: f64,
    /// Window C as a part of the budget.
    pub write_part: f64,
}

impl Default for Windows {
    fn default() -> Self {
        Self { usage_threshold: 2, mem_threshold: 0.9, read_part: 0.75, write_part: 0.25 }
    }
}

/// MultiCache's guest-level policy.
#[derive(Debug)]
pub struct Multicache {
    budget: u64,
    windows: Windows,
    read_map: Ordered<()>,
    write_map: Ordered<()>,
}

impl Multicache {
    /// Makes an empty cache of `budget` bytes with the default thresholds.
    pub fn new(budget: u64) -> Self {
        Self::with_windows(budget, Windows::default())
    }

    /// Makes an empty cache with other thresholds.
    pub fn with_windows(budget: u64, windows: Windows) -> Self {
        Self { budget, windows, read_map: Ordered::new(), write_map: Ordered::new() }
    }

    /// Evicts candidates, D before B, until at most `bytes_max` bytes are held, or none are left.
    fn shrink(&mut self, bytes_max: u64, drops: &mut Vec<FileId>) {
        let window = |part: f64| (self.budget as f64 * part) as u64;
        let (write_window, read_window) =
            (window(self.windows.write_part), window(self.windows.read_part));
        while self.held_bytes() > bytes_max && self.write_map.bytes() > write_window {
            let Some(((), file, _)) = self.write_map.pop_first() else { break };
            drops.push(file);
        }
        while self.held_bytes() > bytes_max && self.read_map.bytes() > read_window {
            let Some(((), file, _)) = self.read_map.pop_first() else { break };
            drops.push(file);
        }
    }

    /// Removes a file from its map. Returns which map it was in.
    fn take(&mut self, file: FileId) -> Option<Use> {
        let from_read = self.read_map.remove(file).map(|_| Use::Read);
        from_read.or_else(|| self.write_map.remove(file).map(|_| Use::Write))
    }
}

impl Policy for Multicache {
    fn used(&mut self, access: &Access, drops: &mut Vec<FileId>) -> bool {
        let Access { file, usage, bytes, uses } = *access;
        let was_in = self.take(file);
        // A dirty file stays in the write map when it is read.
        let usage = if was_in == Some(Use::Write) { Use::Write } else { usage };
        if uses >= self.windows.usage_threshold {
            self.shrink(self.budget.saturating_sub(bytes), drops);
        }
        let fits = self.held_bytes() + bytes <= self.budget;
        if uses < self.windows.usage_threshold || !fits {
            drops.extend(was_in.map(|_| file));
            return false;
        }
        let map = if usage == Use::Read { &mut self.read_map } else { &mut self.write_map };
        map.insert(file, bytes, ());
        true
    }

    fn forget(&mut self, file: FileId) {
        self.take(file);
    }

    fn set_budget(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        self.budget = bytes;
        self.shrink(bytes, drops);
        // The windows shrink with the budget in the paper's rule; the excess is evicted all the
        // same.
        while self.held_bytes() > bytes {
            let first = self.write_map.pop_first().or_else(|| self.read_map.pop_first());
            drops.extend(first.map(|((), file, _)| file));
        }
    }

    fn epoch(&mut self, drops: &mut Vec<FileId>) {
        self.shrink((self.budget as f64 * self.windows.mem_threshold) as u64, drops);
    }

    fn holds(&self, file: FileId) -> bool {
        self.read_map.contains(file) || self.write_map.contains(file)
    }

    fn held_bytes(&self) -> u64 {
        self.read_map.bytes() + self.write_map.bytes()
    }
}
