//! Decides which queue should move to another poller. A pure function from loads to a move.
//!
//! One move at a time; loads are measured again before the next: a queue's load changes with its
//! neighbours.

/// Load above which a poller is overloaded, in CPUs: queues wait for each other.
const BUSY: f64 = 0.8;
/// Load up to which the remaining pollers may be filled when one is given up. Far below [`BUSY`],
/// or a poller would be given up and woken again and again.
const ROOMY: f64 = 0.5;
/// Difference in load between two pollers that is worth a move.
const UNEVEN: f64 = 0.25;
/// Least reduction of the busier poller's load that makes a move worth it.
const GAIN: f64 = 0.05;
/// Load below which a queue is not moved to relieve a poller.
const LIGHT: f64 = 0.02;

/// The recent load of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLoad {
    /// The poller that runs it.
    pub poller: usize,
    /// Fraction of the time spent in turns that found work.
    pub load: f64,
    /// Whether it may be moved now.
    pub movable: bool,
    /// NUMA node of its guest's memory, if that matters.
    pub home: Option<u32>,
}

/// Number of pollers that are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All of them, always.
    All,
    /// As many as the load requires.
    AsNeeded,
}

/// A queue that should run on another poller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Index of the queue among the loads.
    pub queue: usize,
    /// The new poller.
    pub to: usize,
}

/// Returns the next move between pollers on these nodes (where nodes matter), if any.
pub fn plan(queues: &[QueueLoad], nodes: &[Option<u32>], spread: Spread) -> Option<Move> {
    let all = Pollers::of(queues, nodes);
    all.bring_home(queues).or_else(|| all.level(queues, spread))
}

/// Returns a move for tests that need moves without load: of any queue with work, to the next
/// poller.
pub fn restless(queues: &[QueueLoad], pollers: usize) -> Option<Move> {
    let queue = queues.iter().position(|queue| queue.movable && queue.load > 0.0)?;
    (pollers > 1).then(|| Move { queue, to: (queues[queue].poller + 1) % pollers })
}

/// Returns the poller for a new queue: near its guest's memory, with the least load, then with the
/// fewest queues. With [`Spread::AsNeeded`] no unused poller is woken for it, unless no used one is
/// near.
pub fn place(
    home: Option<u32>,
    queues: &[QueueLoad],
    nodes: &[Option<u32>],
    spread: Spread,
) -> usize {
    let all = Pollers::of(queues, nodes);
    let near = || (0..nodes.len()).filter(|at| all.may_run(home, *at));
    let wanted = |at: &usize| spread == Spread::All || all.counts[*at] > 0;
    // Loads that hardly differ compare equal.
    let rank = |at: &usize| ((all.loads[*at] / UNEVEN) as u64, all.counts[*at]);
    near().filter(wanted).min_by_key(rank).or_else(|| near().next()).unwrap_or(0)
}

/// The pollers, with the sums over their queues.
struct Pollers<'a> {
    nodes: &'a [Option<u32>],
    loads: Vec<f64>,
    counts: Vec<usize>,
}

impl<'a> Pollers<'a> {
    fn of(queues: &[QueueLoad], nodes: &'a [Option<u32>]) -> Self {
        let (loads, counts) = (vec![0.0; nodes.len()], vec![0; nodes.len()]);
        let mut all = Self { nodes, loads, counts };
        for queue in queues {
            all.loads[queue.poller] += queue.load;
            all.counts[queue.poller] += 1;
        }
        all
    }

    /// Returns whether a queue with this home may run at `at`: on its node, if any poller is there.
    fn may_run(&self, home: Option<u32>, at: usize) -> bool {
        home.is_none() || self.nodes[at] == home || !self.nodes.contains(&home)
    }

    fn level(&self, queues: &[QueueLoad], spread: Spread) -> Option<Move> {
        let evened = || self.even_out(queues, spread);
        match spread {
            Spread::All => evened(),
            Spread::AsNeeded => {
                self.grow(queues).or_else(evened).or_else(|| self.give_one_up(queues))
            }
        }
    }

    /// Moves a queue with load to the node of its guest's memory.
    fn bring_home(&self, queues: &[QueueLoad]) -> Option<Move> {
        let is_abroad =
            |it: &QueueLoad| it.movable && it.load > LIGHT && !self.may_run(it.home, it.poller);
        let queue = queues.iter().position(is_abroad)?;
        let near = (0..self.nodes.len()).filter(|at| self.may_run(queues[queue].home, *at));
        near.min_by(|one, other| self.loads[*one].total_cmp(&self.loads[*other]))
            .map(|to| Move { queue, to })
    }

    fn used(&self) -> impl Iterator<Item = usize> {
        (0..self.loads.len()).filter(|at| self.counts[*at] > 0)
    }

    /// Returns these pollers, the lightest first. Queues of one cannot run on all others where
    /// nodes matter, so the first one is not always the one to move from or to.
    fn by_load(&self, pollers: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut sorted: Vec<usize> = pollers.collect();
        sorted.sort_by(|one, other| self.loads[*one].total_cmp(&self.loads[*other]));
        sorted
    }

    /// Moves a queue of an overloaded poller to an unused one.
    fn grow(&self, queues: &[QueueLoad]) -> Option<Move> {
        let overloaded = self.used().filter(|at| self.loads[*at] > BUSY);
        self.by_load(overloaded).into_iter().rev().find_map(|from| {
            // Other used pollers with room come first.
            let may = |at| queues.iter().any(|it| it.poller == from && self.may_run(it.home, at));
            let has_room = |at: usize| self.loads[at] + GAIN < ROOMY && may(at);
            if self.used().any(has_room) {
                return None;
            }
            let mut unused = (0..self.loads.len()).filter(|at| self.counts[*at] == 0);
            unused.find_map(|to| self.best(queues, from, to))
        })
    }

    fn even_out(&self, queues: &[QueueLoad], spread: Spread) -> Option<Move> {
        let may = |at: &usize| spread == Spread::All || self.counts[*at] > 0;
        let others = self.by_load((0..self.loads.len()).filter(may));
        // Where nothing waits for a poller, a move gains nothing.
        let waiting = self.used().filter(|at| self.loads[*at] > ROOMY);
        self.by_load(waiting).into_iter().rev().find_map(|from| {
            let uneven = |to: &&usize| self.loads[from] - self.loads[**to] > UNEVEN;
            others.iter().filter(uneven).find_map(|to| self.best(queues, from, *to))
        })
    }

    /// Returns the queue whose move minimizes the load of the busier of the two, if that is worth
    /// it.
    fn best(&self, queues: &[QueueLoad], from: usize, to: usize) -> Option<Move> {
        let after = |load: f64| (self.loads[from] - load).max(self.loads[to] + load);
        let candidates = queues.iter().enumerate().filter(|(_, it)| {
            it.poller == from && it.movable && it.load > LIGHT && self.may_run(it.home, to)
        });
        let (queue, load) = candidates
            .map(|(queue, it)| (queue, it.load))
            .min_by(|one, other| after(one.1).total_cmp(&after(other.1)))?;
        (after(load) + GAIN < self.loads[from]).then_some(Move { queue, to })
    }

    /// Moves a queue off the lightest poller of which the others have room for all queues.
    fn give_one_up(&self, queues: &[QueueLoad]) -> Option<Move> {
        self.by_load(self.used()).into_iter().find_map(|from| self.give_up(queues, from))
    }

    fn give_up(&self, queues: &[QueueLoad], from: usize) -> Option<Move> {
        let mut room: Vec<f64> = self.loads.iter().map(|load| ROOMY - load).collect();
        // All of them must fit before the first one moves; the largest goes first.
        let mut leaving: Vec<usize> =
            (0..queues.len()).filter(|q| queues[*q].poller == from).collect();
        leaving.sort_by(|one, other| queues[*other].load.total_cmp(&queues[*one].load));
        let mut first = None;
        for queue in leaving {
            let may = |at: &usize| *at != from && self.may_run(queues[queue].home, *at);
            let others = self.used().filter(may);
            let to = others.max_by(|one, other| room[*one].total_cmp(&room[*other]))?;
            room[to] -= queues[queue].load;
            if room[to] < 0.0 || !queues[queue].movable {
                return None;
            }
            first = first.or(Some(Move { queue, to }));
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(all: &[(usize, f64)]) -> Vec<QueueLoad> {
        let load = |&(poller, load)| QueueLoad { poller, load, movable: true, home: None };
        all.iter().map(load).collect()
    }

    /// Pollers where nodes do not matter.
    const ANYWHERE: [Option<u32>; 6] = [None; 6];

    /// Makes moves until there are none. Returns how many.
    fn settle(queues: &mut [QueueLoad], nodes: &[Option<u32>], spread: Spread) -> usize {
        for moves in 0..100 {
            let Some(Move { queue, to }) = plan(queues, nodes, spread) else { return moves };
            assert_ne!(queues[queue].poller, to);
            queues[queue].poller = to;
        }
        panic!("it never settles: {queues:?}");
    }

    fn by_poller(queues: &[QueueLoad], pollers: usize) -> Vec<f64> {
        Pollers::of(queues, &ANYWHERE[..pollers]).loads
    }

    fn used(queues: &[QueueLoad], pollers: usize) -> usize {
        Pollers::of(queues, &ANYWHERE[..pollers]).used().count()
    }

    #[test]
    fn an_overloaded_poller_wakes_another_one_and_shares_evenly() {
        let mut queues = loads(&[(0, 0.25); 4]);
        settle(&mut queues, &ANYWHERE[..4], Spread::AsNeeded);
        assert_eq!(by_poller(&queues, 4), [0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn one_queue_that_fills_a_poller_stays_and_its_neighbours_leave() {
        let mut queues = loads(&[(0, 0.9), (0, 0.05), (0, 0.05)]);
        settle(&mut queues, &ANYWHERE[..2], Spread::AsNeeded);
        assert_eq!(queues[0].poller, 1, "the heavy one moves at once; the others stay together");
        assert_eq!(settle(&mut queues, &ANYWHERE[..2], Spread::AsNeeded), 0);
        let mut alone = loads(&[(0, 1.0)]);
        assert_eq!(settle(&mut alone, &ANYWHERE[..2], Spread::AsNeeded), 0, "nothing would be won");
    }

    #[test]
    fn pollers_are_given_up_when_the_load_goes() {
        let mut queues = loads(&[(0, 0.1), (1, 0.1), (2, 0.1), (3, 0.1), (3, 0.01)]);
        settle(&mut queues, &ANYWHERE[..4], Spread::AsNeeded);
        assert_eq!(used(&queues, 4), 1);
        let mut idle = loads(&[(0, 0.0), (1, 0.0), (1, 0.0)]);
        settle(&mut idle, &ANYWHERE[..4], Spread::AsNeeded);
        assert_eq!(used(&idle, 4), 1);
    }

    /// A load between the two thresholds moved queues for ever.
    #[test]
    fn no_load_makes_queues_wander() {
        let mut random = fastrand::Rng::with_seed(14);
        for round in 0..20_000 {
            let pollers = random.usize(1..6);
            let count = random.usize(0..12);
            let load = |_| QueueLoad {
                poller: random.usize(0..pollers),
                load: random.f64().powi(3),
                movable: true,
                home: None,
            };
            let mut queues: Vec<QueueLoad> = (0..count).map(load).collect();
            let spread = if round % 2 == 0 { Spread::All } else { Spread::AsNeeded };
            let before = by_poller(&queues, pollers).into_iter().fold(0.0, f64::max);
            settle(&mut queues, &ANYWHERE[..pollers], spread);
            let after = by_poller(&queues, pollers).into_iter().fold(0.0, f64::max);
            assert!(after <= before.max(ROOMY) + 1e-9, "{before} {after}: {queues:?}");
        }
    }

    #[test]
    fn a_queue_that_has_just_moved_stays_for_a_while() {
        let mut queues = loads(&[(0, 0.6), (0, 0.6)]);
        queues.iter_mut().for_each(|queue| queue.movable = false);
        assert_eq!(plan(&queues, &ANYWHERE[..2], Spread::All), None);
    }

    #[test]
    fn new_queues_go_where_there_is_least_to_do() {
        assert_eq!(place(None, &[], &ANYWHERE[..3], Spread::All), 0);
        assert_eq!(place(None, &loads(&[(0, 0.0)]), &ANYWHERE[..3], Spread::All), 1);
        assert_eq!(
            place(None, &loads(&[(0, 0.9), (1, 0.0), (1, 0.0)]), &ANYWHERE[..2], Spread::All),
            1
        );
        assert_eq!(
            place(None, &loads(&[(0, 0.9)]), &ANYWHERE[..3], Spread::AsNeeded),
            0,
            "load wakes pollers"
        );
        assert_eq!(place(None, &loads(&[(0, 0.9), (2, 0.1)]), &ANYWHERE[..3], Spread::AsNeeded), 2);
    }

    const TWO_NODES: [Option<u32>; 4] = [Some(0), Some(1), Some(0), Some(1)];

    fn at_home(home: u32, poller: usize, load: f64) -> QueueLoad {
        QueueLoad { poller, load, movable: true, home: Some(home) }
    }

    #[test]
    fn queues_stay_on_the_node_of_their_memory_and_come_back_to_it() {
        for spread in [Spread::All, Spread::AsNeeded] {
            let mut queues =
                [(0, 0.9), (0, 0.9), (1, 0.3), (0, 0.9)].map(|(home, load)| at_home(home, 1, load));
            settle(&mut queues, &TWO_NODES, spread);
            let nodes = queues.map(|queue| TWO_NODES[queue.poller]);
            assert_eq!(nodes, [Some(0), Some(0), Some(1), Some(0)]);
            assert_eq!(Pollers::of(&queues, &TWO_NODES).loads[1], 0.3, "though there is room");
        }
    }

    /// Regression: only the first unused poller was looked at, which may be on another node.
    #[test]
    fn an_overloaded_poller_wakes_one_of_its_node() {
        for foreign in [None, Some(at_home(1, 1, 0.1)), Some(at_home(1, 1, 0.95))] {
            let mut queues = vec![at_home(0, 0, 0.6), at_home(0, 0, 0.6)];
            queues.extend(foreign);
            settle(&mut queues, &TWO_NODES, Spread::AsNeeded);
            assert_eq!((queues[0].poller.min(queues[1].poller), used(&queues[..2], 4)), (0, 2));
            // And gives it up again, also if another node has a lighter one.
            queues[..2].iter_mut().for_each(|queue| queue.load = 0.15);
            settle(&mut queues, &TWO_NODES, Spread::AsNeeded);
            assert_eq!(used(&queues[..2], 4), 1, "{queues:?}");
        }
    }

    #[test]
    fn a_queue_whose_node_has_no_poller_runs_anywhere() {
        let mut queues = [at_home(7, 0, 0.5), at_home(7, 0, 0.5)];
        settle(&mut queues, &TWO_NODES, Spread::All);
        assert_ne!(queues[0].poller, queues[1].poller);
        assert_eq!(place(Some(7), &[], &TWO_NODES, Spread::All), 0);
    }

    #[test]
    fn a_new_queue_wakes_a_poller_if_none_is_near() {
        let busy = [at_home(0, 0, 0.1)];
        assert_eq!(place(Some(0), &busy, &TWO_NODES, Spread::AsNeeded), 0);
        assert_eq!(place(Some(1), &busy, &TWO_NODES, Spread::AsNeeded), 1);
        assert_eq!(place(Some(0), &busy, &TWO_NODES, Spread::All), 2);
    }
}
