//! Free host clusters that read as zeroes: allocated for new data and tables.
//!
//! There are two kinds: the end of the file, which grows ahead of need, and clusters that have been
//! freed and punched. A freed cluster gets here only when nothing durable names it and no request
//! in flight might still use it.

use std::ops::Range;

use flowstone_block::mutated;

use super::shape::HostCluster;

/// The free clusters of an image.
pub struct Space {
    /// Freed and punched clusters, in runs.
    holes: Vec<Range<u64>>,
    /// The first cluster that has never been used.
    next: u64,
    /// The first cluster beyond the end of the file.
    end: u64,
    /// Clusters taken for a failed write: to be punched before reuse.
    spoilt: Vec<HostCluster>,
}

impl Space {
    /// No free clusters yet; those from `next` on have never been used.
    pub fn new(next: u64) -> Self {
        Self { holes: Vec::new(), next, end: next, spoilt: Vec::new() }
    }

    /// Takes up to `most` consecutive clusters.
    pub fn take(&mut self, most: u64) -> Option<Range<u64>> {
        if let Some(hole) = self.holes.last_mut() {
            let taken = hole.start..hole.end.min(hole.start + most);
            hole.start = taken.end;
            if hole.is_empty() {
                self.holes.pop();
            }
            return Some(taken);
        }
        self.take_new(most)
    }

    fn take_new(&mut self, most: u64) -> Option<Range<u64>> {
        let taken = self.next..self.end.min(self.next + most);
        self.next = taken.end;
        (!taken.is_empty()).then_some(taken)
    }

    /// Takes `count` consecutive clusters, or none.
    pub fn take_run(&mut self, count: u64) -> Option<Range<u64>> {
        if let Some(hole) = self.holes.iter_mut().find(|hole| hole.end - hole.start >= count) {
            let taken = hole.start..hole.start + count;
            hole.start = taken.end;
            self.holes.retain(|hole| !hole.is_empty());
            return Some(taken);
        }
        if self.end - self.next < count { None } else { self.take_new(count) }
    }

    /// Returns whether there are `count` clusters in the holes, or at the end of the file.
    pub fn has(&self, count: u64) -> bool {
        self.end - self.next >= count
            || self.holes.iter().map(|hole| hole.end - hole.start).sum::<u64>() >= count
    }

    /// Returns the number of clusters at the end of the file that have never been used.
    pub fn unused_end(&self) -> u64 {
        self.end - self.next
    }

    /// Returns the first cluster that has never been used.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the first cluster beyond the end of the file.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the first cluster after all used ones.
    pub fn used_end(&self) -> u64 {
        let mut end = self.next;
        let mut holes: Vec<&Range<u64>> = self.holes.iter().collect();
        holes.sort_unstable_by_key(|hole| hole.end);
        while let Some(hole) = holes.pop().filter(|hole| hole.end == end) {
            end = hole.start;
        }
        end
    }

    /// Extends the file to this cluster.
    pub fn extend(&mut self, end: u64) {
        self.end = self.end.max(end);
    }

    /// Takes all freed clusters.
    pub fn take_holes(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.holes)
    }

    /// Adds free clusters that read as zeroes.
    pub fn give_back(&mut self, clusters: Range<u64>) {
        if !clusters.is_empty() {
            self.holes.push(clusters);
        }
    }

    /// Adds a free cluster that holds data of a failed write.
    pub fn spoil(&mut self, cluster: HostCluster) {
        let is_zero = mutated("qcow2.space.takes-a-spoilt-cluster-for-zeroes", false, true);
        if is_zero {
            return self.give_back(cluster.0..cluster.0 + 1);
        }
        self.spoilt.push(cluster);
    }

    /// Takes the clusters with data of failed writes.
    pub fn take_spoilt(&mut self) -> Vec<HostCluster> {
        std::mem::take(&mut self.spoilt)
    }
}

/// Merges clusters, in any order, into runs.
pub fn merged(mut clusters: Vec<HostCluster>) -> Vec<Range<u64>> {
    clusters.sort_unstable();
    clusters.dedup();
    clusters
        .chunk_by(|before, after| before.0 + 1 == after.0)
        .map(|run| run[0].0..run[0].0 + run.len() as u64)
        .collect()
}

/// Sorts runs, and merges neighbours.
pub fn merge_runs(runs: &mut Vec<Range<u64>>) {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, before| {
        let touches = next.start <= before.end;
        if touches {
            before.end = before.end.max(next.end);
        }
        touches
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_used_before_the_end_of_the_file() {
        let mut space = Space::new(10);
        space.extend(20);
        space.give_back(3..5);
        assert!(space.has(10) && !space.has(11));
        assert_eq!(space.take(9), Some(3..5));
        assert_eq!(space.take(4), Some(10..14));
        assert_eq!(space.take_run(7), None);
        assert_eq!(space.take_run(6), Some(14..20));
        assert_eq!(space.take(1), None);
        space.extend(21);
        assert_eq!(space.take(5), Some(20..21));
    }

    #[test]
    fn neighbours_are_merged_from_any_order() {
        let clusters = [7, 2, 3, 9, 8, 3].map(HostCluster).to_vec();
        assert_eq!(merged(clusters), [2..4, 7..10]);
        let mut runs = vec![7..9, 2..4, 9..10, 4..5, 20..21];
        merge_runs(&mut runs);
        assert_eq!(runs, [2..5, 7..10, 20..21]);
    }
}
