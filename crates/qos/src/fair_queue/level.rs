//! The members of one level of a fair queue, by their tags: the disks of a VM, or the VMs.

use std::collections::BTreeSet;

/// Virtual time that a cost of 1 takes at weight 1. Much more than the largest weight: what a
/// request costs of that is not to be rounded away.
const SCALE: u128 = 1 << 40;

/// Which members are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All that wait.
    Waiting,
    /// Those that stand apart.
    Apart,
    /// Those of which something waits that goes first.
    First,
}

const KINDS: [Kind; 3] = [Kind::Waiting, Kind::Apart, Kind::First];

/// What a member is, one bit for each kind; none while it does not wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    pub const fn with(self, kind: Kind, is_one: bool) -> Self {
        if is_one { Self(self.0 | 1 << kind as u8) } else { self }
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub const fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

/// A weight, and the virtual time at which the next request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    pub weight: u32,
    pub tag: u128,
}

impl Share {
    pub const fn new(weight: u32) -> Self {
        Self { weight, tag: 0 }
    }

    fn tags_of(self, cost: u64) -> u128 {
        u128::from(cost) * SCALE / u128::from(self.weight)
    }

    pub fn charge(&mut self, cost: u64) {
        self.tag += self.tags_of(cost);
    }

    pub fn refund(&mut self, cost: u64) {
        self.tag = self.tag.saturating_sub(self.tags_of(cost));
    }

    /// How much more than its part it has had beside another one, as a cost.
    pub fn lead(self, other: Self) -> u64 {
        let lead = self.tag.saturating_sub(other.tag) / SCALE;
        let weight = u128::from(self.weight);
        // Whole costs first: the product of a long lead and a large weight has no room.
        let rest = self.tag.saturating_sub(other.tag) % SCALE * weight / SCALE;
        u64::try_from(lead.saturating_mul(weight).saturating_add(rest)).unwrap_or(u64::MAX)
    }
}

/// Where a member is in its level.
pub type Place = (Share, Kinds);

/// A tag, and whose it is: of equal ones, that with the smaller key comes first.
type Turn = (u128, usize);

/// See the module.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// The tag of what has gone last; never goes back.
    pub virtual_time: u128,
    turns: [BTreeSet<Turn>; KINDS.len()],
    /// The weights of those that wait.
    weights: u64,
}

impl Level {
    /// A member is in another place now.
    pub fn moved(&mut self, key: usize, before: Place, after: Place) {
        if before == after {
            return;
        }
        let Self { turns, weights, .. } = self;
        for kind in KINDS {
            let turns = &mut turns[kind as usize];
            if before.1.has(kind) {
                turns.remove(&(before.0.tag, key));
            }
            if after.1.has(kind) {
                turns.insert((after.0.tag, key));
            }
        }
        let counted = |(share, kinds): Place| u64::from(!kinds.is_none()) * u64::from(share.weight);
        *weights = *weights - counted(before) + counted(after);
    }

    /// What the level is as a member of the one above it.
    pub fn kinds(&self) -> Kinds {
        let has = |kind: Kind| !self.turns[kind as usize].is_empty();
        KINDS.iter().fold(Kinds::default(), |kinds, kind| kinds.with(*kind, has(*kind)))
    }

    /// Members of a kind, the next one first.
    pub fn turns(&self, kind: Kind) -> impl Iterator<Item = usize> {
        self.turns[kind as usize].iter().map(|(_, key)| *key)
    }

    pub const fn weights(&self) -> u64 {
        self.weights
    }

    /// Something of a member has gone whose tag was this.
    pub fn gone(&mut self, tag: u128) {
        self.virtual_time = self.virtual_time.max(tag);
    }
}
