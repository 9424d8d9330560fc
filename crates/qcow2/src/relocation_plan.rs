//! The relocation plan of `compact`: the target of each cluster, and the order of the moves.
//!
//! A cluster moves to its target once that is free. This frees its old place, which is the target
//! of another cluster: so a few free places are enough for the whole file. Where only cycles are
//! left, some clusters move out of the way first.

use std::ops::Range;

use super::shape::{GuestCluster, HostCluster};
use super::space::merged;

/// A guest cluster, its host cluster and its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub guest: GuestCluster,
    pub from: HostCluster,
    pub to: HostCluster,
}

/// The clusters that still have to move.
#[derive(Default)]
pub struct RelocationPlan {
    /// In the order of the disk, and so of their targets.
    moves: Vec<Move>,
    /// Indices of the moves whose target is free.
    ready: Vec<usize>,
    is_ready: Vec<bool>,
    left: usize,
    /// Position of the search for blocking clusters.
    hand: usize,
}

impl RelocationPlan {
    /// Plans the order of these clusters, given in the order of the disk with their present places,
    /// over these places and the free ones. Removes the free places that it uses from `free`.
    pub fn new(mut moves: Vec<Move>, free: &mut Vec<Range<u64>>) -> Self {
        free.sort_unstable_by_key(|hole| hole.start);
        assign(&mut moves, free);
        moves.retain(|it| it.from != it.to);
        let is_ready = vec![false; moves.len()];
        let mut plan = Self { left: moves.len(), moves, is_ready, ..Self::default() };
        *free = free.iter().flat_map(|hole| plan.fill_hole(hole.clone())).collect();
        plan
    }

    /// Makes the clusters ready whose targets are in a hole. Returns the rest of the hole.
    fn fill_hole(&mut self, hole: Range<u64>) -> Vec<Range<u64>> {
        let mut rest = Vec::new();
        let mut start = hole.start;
        let first = self.moves.partition_point(|it| it.to.0 < hole.start);
        for index in first..self.moves.partition_point(|it| it.to.0 < hole.end) {
            let place = self.moves[index].to.0;
            rest.push(start..place);
            start = place + 1;
            self.make_ready(index);
        }
        rest.push(start..hole.end);
        rest.retain(|part| !part.is_empty());
        rest
    }

    fn make_ready(&mut self, index: usize) {
        self.ready.push(index);
        self.is_ready[index] = true;
    }

    /// Iterates over free places that are targets of clusters.
    pub fn unused(&self) -> impl Iterator<Item = HostCluster> {
        self.ready.iter().map(|index| self.moves[*index].to)
    }

    /// Returns the number of clusters that are not at their target.
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes up to `most` clusters whose target is free, the most recently freed first: a freed
    /// place is allocated on the host, and one that was free from the beginning may not be.
    pub fn take_ready(&mut self, most: usize) -> Vec<Move> {
        let first = self.ready.len() - most.min(self.ready.len());
        self.ready.drain(first..).map(|index| self.moves[index]).collect()
    }

    /// Takes up to `most` clusters that occupy the target of another one and cannot go to their own
    /// yet. They come from all over the file, so that long chains of moves follow before the next
    /// search.
    pub fn take_blocking(&mut self, most: usize) -> Vec<Move> {
        let stride = (self.moves.len() / most.max(1)).max(1);
        // While others can move, a few blocking clusters are not worth a full scan.
        let looks =
            if self.ready.is_empty() { self.moves.len() } else { self.moves.len().min(most * 64) };
        let mut found = Vec::new();
        for _ in 0..looks {
            if found.len() == most {
                break;
            }
            let index = self.hand;
            self.hand += stride;
            if self.hand >= self.moves.len() {
                self.hand = (self.hand % stride + 1) % stride;
            }
            let it = self.moves[index];
            if it.from != it.to && !self.is_ready[index] && self.waiting_for(it.from).is_some() {
                found.push(it);
            }
        }
        found
    }

    fn waiting_for(&self, place: HostCluster) -> Option<usize> {
        let index = self.moves.binary_search_by_key(&place, |it| it.to).ok()?;
        (self.moves[index].from != place).then_some(index)
    }

    /// Notes that a cluster has moved.
    pub fn moved(&mut self, cluster: &Move, to: HostCluster) {
        let index = self.moves.binary_search_by_key(&cluster.to, |it| it.to);
        let index = index.expect("one of the clusters that were taken");
        self.moves[index].from = to;
        self.left -= usize::from(self.moves[index].to == to);
    }

    /// Notes that a place is free. Returns whether it is the target of some cluster.
    pub fn freed(&mut self, place: HostCluster) -> bool {
        let waiting = self.waiting_for(place);
        waiting.into_iter().for_each(|index| self.make_ready(index));
        waiting.is_some()
    }
}

/// Assigns each cluster the next of all places, in order. A cluster that is not contiguous with the
/// previous one on the disk may leave a gap: it stays where it is if that is behind all earlier
/// clusters and before all later ones.
fn assign(moves: &mut [Move], free: &[Range<u64>]) {
    let mut places = merged(moves.iter().map(|it| it.from).collect());
    places.extend_from_slice(free);
    places.sort_unstable_by_key(|run| run.start);
    // Temporarily, the lowest place of this cluster and all that follow it.
    let mut lowest = HostCluster(u64::MAX);
    for it in moves.iter_mut().rev() {
        lowest = lowest.min(it.from);
        it.to = lowest;
    }
    let (mut run, mut next) = (0, 0);
    let mut before = None;
    for it in moves {
        let follows = before.is_some_and(|before: u64| before + 1 == it.guest.0);
        if follows || it.to != it.from || it.from.0 < next {
            it.to = HostCluster(next.max(places[run].start));
        }
        before = Some(it.guest.0);
        next = it.to.0 + 1;
        while places.get(run).is_some_and(|places| places.end <= next) {
            run += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    fn clusters(hosts: &[u64], stride: u64) -> Vec<Move> {
        let cluster = |(guest, host): (usize, &u64)| Move {
            guest: GuestCluster(guest as u64 * stride),
            from: HostCluster(*host),
            to: HostCluster(0),
        };
        hosts.iter().enumerate().map(cluster).collect()
    }

    fn assigned(hosts: &[u64], stride: u64, free: Range<u64>) -> Vec<u64> {
        let mut moves = clusters(hosts, stride);
        let holes: Vec<Range<u64>> = free.map(|it| it..it + 1).collect();
        assign(&mut moves, &holes);
        moves.iter().map(|it| it.to.0).collect()
    }

    #[test]
    fn what_is_in_order_stays_and_the_rest_is_packed() {
        assert_eq!(assigned(&[3, 4, 9, 20], 2, 5..9), [3, 4, 9, 20], "gaps on the disk");
        assert_eq!(assigned(&[3, 4, 9, 20], 1, 5..9), [3, 4, 5, 6]);
        assert_eq!(assigned(&[3, 4, 9, 20], 1, 0..0), [3, 4, 9, 20], "tables between");
        assert_eq!(assigned(&[5, 3, 9], 1, 0..0), [3, 5, 9]);
        assert_eq!(assigned(&[5, 3, 9], 2, 4..5), [3, 4, 9]);
        assert_eq!(assigned(&[3, 30, 4, 5], 1, 6..9), [3, 4, 5, 6]);
        assert_eq!(assigned(&[3, 30, 5, 6], 1, 4..5), [3, 4, 5, 6]);
        assert_eq!(assigned(&[8, 9, 10], 1, 2..4), [8, 9, 10]);
        assert_eq!(assigned(&[9, 8, 10], 1, 2..4), [2, 3, 8]);
        assert_eq!(assigned(&[9, 8, 10], 2, 2..4), [2, 8, 10]);
        assert_eq!(assigned(&[], 1, 2..4), [0; 0]);
    }

    /// Carries out all moves, `batch` at once, with as many places to step aside to.
    fn carry_out(hosts: &[u64], stride: u64, mut free: Vec<Range<u64>>, batch: usize) -> usize {
        let mut file: std::collections::HashMap<u64, u64> =
            hosts.iter().enumerate().map(|(guest, host)| (*host, guest as u64 * stride)).collect();
        let mut wanted = clusters(hosts, stride);
        free.sort_unstable_by_key(|hole| hole.start);
        assign(&mut wanted, &free);
        let mut plan = RelocationPlan::new(clusters(hosts, stride), &mut free);
        let mut aside: Vec<u64> = (1000..1000 + batch as u64).collect();
        let mut moved = 0;
        while plan.left() > 0 {
            let mut steps: Vec<(Move, HostCluster)> =
                plan.take_ready(batch).into_iter().map(|it| (it, it.to)).collect();
            for it in plan.take_blocking((batch - steps.len()).min(aside.len())) {
                steps.push((it, HostCluster(aside.pop().unwrap())));
            }
            assert!(!steps.is_empty(), "no way on: {hosts:?}");
            for (it, to) in &steps {
                let guest = file.remove(&it.from.0).unwrap();
                assert_eq!(guest, it.guest.0);
                assert_eq!(file.insert(to.0, guest), None, "{to:?} was in use");
                plan.moved(it, *to);
                moved += 1;
            }
            for (it, _) in &steps {
                if !plan.freed(it.from) {
                    aside.push(it.from.0);
                }
            }
        }
        assert!(wanted.iter().all(|it| file[&it.to.0] == it.guest.0));
        moved
    }

    #[test]
    fn every_cluster_gets_where_it_is_to_be() {
        let mut random = Rng::with_seed(7);
        for round in 0..300 {
            let mut hosts: Vec<u64> = (10..10 + random.u64(1..200)).collect();
            random.shuffle(&mut hosts);
            hosts.truncate(random.usize(1..=hosts.len()));
            let used: std::collections::HashSet<u64> = hosts.iter().copied().collect();
            let holes =
                (10..210).filter(|it| !used.contains(it) && random.bool()).map(|it| it..it + 1);
            let holes: Vec<Range<u64>> = holes.collect();
            let batch = random.usize(1..20);
            let moved = carry_out(&hosts, 1 + round % 2, holes, batch);
            assert!(moved <= hosts.len() * 2, "round {round}: {moved} for {}", hosts.len());
        }
        // All but one form one cycle: each moves once, whatever steps aside.
        let shifted: Vec<u64> = (0..100).map(|it| 10 + (it + 99) % 100).collect();
        assert!(carry_out(&shifted, 1, vec![], 4) <= 104);
        assert_eq!(carry_out(&[10, 11, 12], 1, vec![], 4), 0);
    }
}
