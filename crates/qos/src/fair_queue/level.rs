//! The members of one level of a fair queue, by their tags: the disks of a VM, or the VMs.

use std::collections::VecDeque;

use flowstone_block::mutated;

/// Virtual time of a cost of 1 at weight 1. Much more than the largest weight, so that a cost
/// divided by a weight is not rounded away.
const SCALE: u128 = 1 << 40;

/// Selects members of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All with waiting requests or debts.
    Waiting,
    /// Of these, those that stand apart.
    Apart,
    /// Of these, those with waiting requests of rank `First`.
    First,
}

const KINDS: [Kind; 3] = [Kind::Waiting, Kind::Apart, Kind::First];

/// The kinds of a member as a bit set; empty while it has nothing waiting.
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
    /// Part of `tag` that it has gone ahead of others which waited, until they have caught up.
    pub ahead: u128,
}

impl Share {
    pub const fn new(weight: u32) -> Self {
        Self { weight, tag: 0, ahead: 0 }
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

    /// Notes that it goes ahead of another one that waits, by at most `most`.
    pub fn goes_ahead(&mut self, turn: Self, most: u64) {
        let ahead = self.tag.saturating_sub(turn.tag).min(self.tags_of(most));
        let ahead = mutated("qos.fair.vms-that-go-ahead-take-time-along", ahead, 0);
        self.ahead = ahead;
    }

    /// Returns the cost by which it is ahead of another one.
    pub fn lead(self, other: Self) -> u64 {
        let lead = self.tag.saturating_sub(other.tag) / SCALE;
        let weight = u128::from(self.weight);
        // Whole costs first: the product of a long lead and a large weight would overflow.
        let rest = self.tag.saturating_sub(other.tag) % SCALE * weight / SCALE;
        u64::try_from(lead.saturating_mul(weight).saturating_add(rest)).unwrap_or(u64::MAX)
    }
}

/// Position of a member in its level.
pub type Place = (Share, Kinds);

/// A tag and the member's key; of equal tags, the smaller key is first.
type Turn = (u128, usize);

/// The members of one level, ordered by tag.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Tag of the last grant, without what that had gone ahead; never decreases.
    pub virtual_time: u128,
    /// Sorted. A grant moves a member from the front towards the back: among equal weights a deque
    /// moves few others for that.
    turns: [VecDeque<Turn>; KINDS.len()],
    /// Sum of the weights of waiting members.
    weights: u64,
}

impl Level {
    /// Moves a member to another place.
    pub fn moved(&mut self, key: usize, before: Place, after: Place) {
        if before == after {
            return;
        }
        let Self { turns, weights, .. } = self;
        for kind in KINDS {
            let turns = &mut turns[kind as usize];
            let turn = |(share, kinds): Place| kinds.has(kind).then_some((share.tag, key));
            let (before, after) = (turn(before), turn(after));
            if before == after {
                continue;
            }
            if let Some(at) = before.and_then(|turn| turns.binary_search(&turn).ok()) {
                turns.remove(at);
            }
            if let Some(turn) = after {
                turns.insert(turns.partition_point(|other| *other < turn), turn);
            }
        }
        let counted = |(share, kinds): Place| u64::from(!kinds.is_none()) * u64::from(share.weight);
        *weights = *weights - counted(before) + counted(after);
    }

    /// Returns the kinds of this level as a member of the level above.
    pub fn kinds(&self) -> Kinds {
        let has = |kind: Kind| !self.turns[kind as usize].is_empty();
        KINDS.iter().fold(Kinds::default(), |kinds, kind| kinds.with(*kind, has(*kind)))
    }

    /// Iterates over the members of a kind, the next one first.
    pub fn turns(&self, kind: Kind) -> impl Iterator<Item = usize> {
        self.turns[kind as usize].iter().map(|(_, key)| *key)
    }

    pub const fn weights(&self) -> u64 {
        self.weights
    }

    /// Advances virtual time to the tag of a grant.
    pub fn gone(&mut self, share: Share) {
        self.virtual_time = self.virtual_time.max(share.tag.saturating_sub(share.ahead));
    }
}
