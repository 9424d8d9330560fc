//! Selection of the next full block to collect.
//!
//! Blocks with equally many live units form a list, oldest entry first, so that a selection costs
//! at most one look per number of live units.

/// Policy by which the victim is selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Fewest live units.
    Greedy,
    /// Filled first.
    Fifo,
    /// Greatest (dead / (size + live)) x age, as in log-structured file systems, where the age of a
    /// block is that of its last change (Rosenblum and Ousterhout 1992, 3.6).
    CostBenefit,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Entry {
    before: u32,
    after: u32,
    list: u32,
    since: u64,
}

#[derive(Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

/// The full blocks, by their number of live units.
pub struct Victims {
    policy: Policy,
    units_per_block: u32,
    entries: Vec<Entry>,
    lists: Vec<List>,
    /// No list below this index has a block.
    lowest: usize,
    now: u64,
}

impl Victims {
    /// Makes the lists; no block is full.
    pub fn new(policy: Policy, blocks: u32, units_per_block: u32) -> Self {
        let nobody = Entry { before: NONE, after: NONE, list: NONE, since: 0 };
        let lists = match policy {
            Policy::Fifo => 1,
            Policy::Greedy | Policy::CostBenefit => units_per_block as usize + 1,
        };
        Self {
            policy,
            units_per_block,
            entries: vec![nobody; blocks as usize],
            lists: vec![List { first: NONE, last: NONE }; lists],
            lowest: 0,
            now: 0,
        }
    }

    /// Adds a full block with this many live units.
    pub fn filled(&mut self, block: u32, live: u32) {
        self.now += 1;
        self.enter(block, self.list_of(live));
    }

    /// Records the death of a unit of a block, full or not; `live` units are left.
    pub fn lost_one(&mut self, block: u32, live: u32) {
        if self.entries[block as usize].list == NONE || self.policy == Policy::Fifo {
            return;
        }
        self.leave(block);
        self.enter(block, self.list_of(live));
    }

    /// Removes and returns the next victim.
    pub fn pick(&mut self) -> Option<u32> {
        while self.lists.get(self.lowest)?.first == NONE {
            self.lowest += 1;
        }
        let list = match self.policy {
            Policy::Greedy | Policy::Fifo => self.lowest,
            Policy::CostBenefit => self.best(),
        };
        let block = self.lists[list].first;
        self.leave(block);
        Some(block)
    }

    /// Returns the list whose oldest block has the greatest benefit.
    fn best(&self) -> usize {
        let size = f64::from(self.units_per_block);
        let benefit = |live: usize| {
            let entry = &self.entries[self.lists[live].first as usize];
            let live = live as f64;
            (size - live) / (size + live) * (self.now - entry.since + 1) as f64
        };
        (self.lowest..self.lists.len())
            .filter(|&live| self.lists[live].first != NONE)
            .max_by(|&one, &other| benefit(one).total_cmp(&benefit(other)))
            .unwrap_or(self.lowest)
    }

    fn list_of(&self, live: u32) -> usize {
        if self.policy == Policy::Fifo { 0 } else { live as usize }
    }

    fn enter(&mut self, block: u32, list: usize) {
        let last = std::mem::replace(&mut self.lists[list].last, block);
        match last {
            NONE => self.lists[list].first = block,
            last => self.entries[last as usize].after = block,
        }
        self.entries[block as usize] =
            Entry { before: last, after: NONE, list: list as u32, since: self.now };
        self.lowest = self.lowest.min(list);
    }

    fn leave(&mut self, block: u32) {
        let Entry { before, after, list, .. } = self.entries[block as usize];
        match before {
            NONE => self.lists[list as usize].first = after,
            before => self.entries[before as usize].after = after,
        }
        match after {
            NONE => self.lists[list as usize].last = before,
            after => self.entries[after as usize].before = before,
        }
        self.entries[block as usize].list = NONE;
    }
}
