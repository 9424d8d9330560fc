//! A policy that follows the one of several that has saved most time recently.
//!
//! Several policies run side by side over all uses, on file numbers and sizes alone (a shadow each:
//! about 100 bytes per file that it holds). Their estimated savings are summed up with exponential
//! decay. The files held are those that the leader holds; held files that it does not hold are
//! evicted first, in LRU order. A file is read into memory only when it is used, so a change of the
//! leader costs no reads.

use crate::ordered::Ordered;
use crate::{Access, FileId, Gdsf, Link, Multicache, Policy, S3Fifo, Use};

/// A shadow becomes the leader when its savings are this many times the leader's.
const LEAD: f64 = 1.01;
/// Number of uses after which savings have decayed to 1/e.
const MEMORY_USES: f64 = 20_000.0;

/// A candidate policy, simulated over all uses.
struct Shadow {
    policy: Box<dyn Policy>,
    saved_s: f64,
}

/// The default policy: follows the best of several policies.
pub struct Adaptive {
    budget: u64,
    link: Link,
    shadows: Vec<Shadow>,
    leader: usize,
    /// Files held that the leader holds, too.
    wanted: Ordered<()>,
    /// Files held that the leader does not hold: evicted first.
    unwanted: Ordered<()>,
    /// Buffer for the drops of a shadow.
    shadow_drops: Vec<FileId>,
}

impl Adaptive {
    /// Makes an empty cache of `budget` bytes over a link.
    pub fn new(budget: u64, link: Link) -> Self {
        let policies: [Box<dyn Policy>; 4] = [
            Box::new(S3Fifo::new(budget)),
            Box::new(Gdsf::new(budget, link)),
            Box::new(Gdsf::lru(budget)),
            // Keeps its files under a cyclic access pattern, under which the others get no hits.
            Box::new(Multicache::new(budget)),
        ];
        let shadows = policies.map(|policy| Shadow { policy, saved_s: 0.0 }).into();
        let [wanted, unwanted] = [(); 2].map(|()| Ordered::new());
        Self { budget, link, shadows, leader: 0, wanted, unwanted, shadow_drops: Vec::new() }
    }

    fn run_shadows(&mut self, access: &Access) {
        let gain = match access.usage {
            Use::Read => self.link.seconds(access.bytes),
            Use::Write => 0.0,
        };
        for at in 0..self.shadows.len() {
            let shadow = &mut self.shadows[at];
            let saved = if shadow.policy.holds(access.file) { gain } else { 0.0 };
            shadow.saved_s = shadow.saved_s * (1.0 - 1.0 / MEMORY_USES) + saved;
            shadow.policy.used(access, &mut self.shadow_drops);
            self.follow(at);
        }
    }

    /// Follows the drops of a shadow, if it is the leader.
    fn follow(&mut self, at: usize) {
        for file in self.shadow_drops.drain(..) {
            if at == self.leader
                && let Some(bytes) = self.wanted.remove(file)
            {
                self.unwanted.insert(file, bytes, ());
            }
        }
    }

    fn choose_leader(&mut self) {
        let saved = |at: usize| self.shadows[at].saved_s;
        let best =
            (0..self.shadows.len()).max_by(|one, other| saved(*one).total_cmp(&saved(*other)));
        let Some(best) = best.filter(|best| saved(*best) > saved(self.leader) * LEAD) else {
            return;
        };
        self.leader = best;
        let held: Vec<_> = self.unwanted.iter().chain(self.wanted.iter()).collect();
        for (file, bytes) in held {
            self.take(file);
            self.put(file, bytes);
        }
    }

    fn take(&mut self, file: FileId) -> Option<u64> {
        self.wanted.remove(file).or_else(|| self.unwanted.remove(file))
    }

    fn put(&mut self, file: FileId, bytes: u64) {
        let is_wanted = self.shadows[self.leader].policy.holds(file);
        let files = if is_wanted { &mut self.wanted } else { &mut self.unwanted };
        files.insert(file, bytes, ());
    }

    fn make_room(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        while self.held_bytes() + bytes > self.budget {
            let oldest = self.unwanted.pop_first().or_else(|| self.wanted.pop_first());
            let Some(((), file, _)) = oldest else { return };
            drops.push(file);
        }
    }
}

impl Policy for Adaptive {
    fn used(&mut self, access: &Access, drops: &mut Vec<FileId>) -> bool {
        let Access { file, bytes, .. } = *access;
        self.run_shadows(access);
        self.choose_leader();
        let was_held = self.take(file).is_some();
        let is_wanted = self.shadows[self.leader].policy.holds(file);
        if bytes > self.budget || !(is_wanted || was_held) {
            if was_held {
                drops.push(file);
            }
            return false;
        }
        self.make_room(bytes, drops);
        self.put(file, bytes);
        true
    }

    fn forget(&mut self, file: FileId) {
        self.shadows.iter_mut().for_each(|shadow| shadow.policy.forget(file));
        self.take(file);
    }

    fn set_budget(&mut self, bytes: u64, drops: &mut Vec<FileId>) {
        self.budget = bytes;
        for at in 0..self.shadows.len() {
            self.shadows[at].policy.set_budget(bytes, &mut self.shadow_drops);
            self.follow(at);
        }
        self.make_room(0, drops);
    }

    fn epoch(&mut self, _drops: &mut Vec<FileId>) {
        for at in 0..self.shadows.len() {
            self.shadows[at].policy.epoch(&mut self.shadow_drops);
            self.follow(at);
        }
    }

    fn holds(&self, file: FileId) -> bool {
        self.wanted.contains(file) || self.unwanted.contains(file)
    }

    fn held_bytes(&self) -> u64 {
        self.wanted.bytes() + self.unwanted.bytes()
    }
}
