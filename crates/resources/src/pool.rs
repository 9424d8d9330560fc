//! All caches that share the host's memory: the sector cache and guests' file caches. One [`Sizer`]
//! decides their total size, `grants` the part of each.

use std::time::Duration;

use flowstone_block::{Peer, format_size};
use flowstone_cache::Cache;
use flowstone_memory::sizer::{Change, Limits, Reading, Reason, Sizer};

use super::grants::{Curve, Member, share_out};
use crate::Heard;

/// Interval between decisions. Two of them, and freeing memory, fit into the two seconds within
/// which memory must be given back.
pub const PERIOD: Duration = Duration::from_millis(500);
/// Divisor of a guest cache's wanted size that gives its minimum, however short memory is.
const MIN_OF: u64 = 16;
/// Interval at which parts are recomputed, since curves change.
const REVIEW: Duration = Duration::from_secs(60);
/// Points of the sector cache's curve.
const POINTS: u64 = 16;

/// The file cache of a guest, as seen by the host.
#[derive(Clone, Debug, PartialEq)]
pub struct GuestCache {
    /// Its last report.
    pub heard: Heard,
    /// The VM's fraction of the total weight, at most 1.
    pub weight: f64,
    /// The VM's memory, the upper limit of its cache.
    pub memory_bytes: u64,
}

/// The sizes of all caches.
pub struct Pool {
    sizer: Sizer,
    /// Limits of the sector cache; zero without one.
    cache: Limits,
    /// Guests that have parts.
    guests: Vec<Peer>,
    parts: Vec<u64>,
    shared_at: Duration,
    reason: String,
}

impl Pool {
    /// Makes a pool with a sector cache of these limits, and no guests.
    pub fn new(cache: Limits) -> Self {
        let reason = "memory suffices".to_owned();
        let parts = vec![cache.max];
        Self {
            sizer: Sizer::new(cache),
            cache,
            guests: Vec::new(),
            parts,
            shared_at: Duration::ZERO,
            reason,
        }
    }

    /// Decides at the time `now`. Returns the change of the total size, if there is one.
    pub fn decide(
        &mut self,
        now: Duration,
        reading: Reading,
        cache: Option<&Cache>,
        guests: &[GuestCache],
    ) -> Option<Change> {
        let members = self.members(cache, guests);
        let sum = |of: fn(&Member) -> u64| members.iter().map(of).sum();
        self.sizer
            .set_limits(Limits { min: sum(|member| member.min), max: sum(|member| member.max) });
        // The claimed use, as far as it is plausible.
        let used = guests.iter().map(|it| it.heard.report.used_bytes.min(it.memory_bytes));
        let held = cache.map_or(0, Cache::resident_bytes) + used.sum::<u64>();
        let hit_ratio = |bytes| match cache {
            Some(cache) if guests.is_empty() => cache.weighed_hit_ratio_of(bytes),
            _ => hit_ratio(bytes, &members),
        };
        let change = self.sizer.decide(now, reading, held, &hit_ratio);
        if let Some(change) = &change {
            self.reason = in_words(change);
        }
        let peers: Vec<Peer> = guests.iter().map(|guest| guest.heard.peer).collect();
        let is_due = !peers.is_empty() && now - self.shared_at >= REVIEW;
        if change.is_some() || peers != self.guests || is_due {
            self.parts = share_out(self.sizer.target(), &members);
            (self.guests, self.shared_at) = (peers, now);
        }
        change
    }

    /// Returns the members, the sector cache first if there is one.
    fn members(&self, cache: Option<&Cache>, guests: &[GuestCache]) -> Vec<Member> {
        let Limits { min, max } = self.cache;
        let curve = |cache: &Cache| {
            let point = |at| cache.weighed_hit_ratio_of(max * at / POINTS);
            (1..=POINTS).map(point).collect::<Option<Vec<f64>>>().unwrap_or_default()
        };
        // The sector cache serves all VMs.
        let of_cache = cache.map(|cache| Member {
            weight: 1.0,
            min,
            max,
            curve: if guests.is_empty() { Vec::new() } else { curve(cache) },
        });
        let of_guest = |guest: &GuestCache| {
            let max = guest.heard.report.wanted_bytes.min(guest.memory_bytes);
            let curve = guest.heard.report.curve.clone();
            Member { weight: guest.weight, min: max / MIN_OF, max, curve }
        };
        of_cache.into_iter().chain(guests.iter().map(of_guest)).collect()
    }

    /// Returns the target of the sector cache, if there is one.
    pub fn of_cache(&self) -> u64 {
        self.parts[0]
    }

    /// Returns the grant of each guest, by the process that runs it.
    pub fn grants(&self) -> impl Iterator<Item = (Peer, u64)> {
        let first = self.parts.len() - self.guests.len();
        self.guests.iter().copied().zip(self.parts[first..].iter().copied())
    }

    /// Returns why the total is not larger.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

/// Returns the weighted hit ratio of all caches if they share `bytes`.
fn hit_ratio(bytes: u64, members: &[Member]) -> Option<f64> {
    let parts = share_out(bytes, members);
    let mut sum = 0.0;
    for (member, part) in members.iter().zip(parts) {
        sum += member.weight * Curve::known(member)?.at(part);
    }
    Some(sum / members.iter().map(|member| member.weight).sum::<f64>())
}

/// Describes the reason of a change.
pub fn in_words(change: &Change) -> String {
    match change.reason {
        Reason::Short(Reading { available, total, waiting }) => format!(
            "{} of {} of memory are available, and processes waited for some in {:.0} % of the time",
            format_size(available),
            format_size(total),
            waiting * 100.0,
        ),
        Reason::Unused(loss) => format!(
            "the last {} bring {:.1} % of hits",
            format_size(change.from - change.to),
            loss * 100.0
        ),
        Reason::Plenty(available, time) => format!(
            "{} of memory have been available for {} s",
            format_size(available),
            time.as_secs()
        ),
    }
}

#[cfg(test)]
mod tests {
    use flowstone_memory::message::Report;

    use super::*;

    const MIB: u64 = 1 << 20;
    const HOST: u64 = 4096 * MIB;

    /// A host with a given use by others, and guests that use what they are granted.
    struct Host {
        pool: Pool,
        now: Duration,
        guests: Vec<GuestCache>,
    }

    fn guest(pid: u32, weight: f64, curve: &[f64]) -> GuestCache {
        let wanted_bytes = 256 * MIB;
        let report = Report {
            used_bytes: wanted_bytes,
            wanted_bytes,
            curve: curve.to_vec(),
            ..Report::default()
        };
        let peer = Peer { pid, start: None };
        let heard = Heard { peer, report, age: Duration::ZERO, grant: None };
        GuestCache { heard, weight, memory_bytes: 1024 * MIB }
    }

    impl Host {
        fn new(guests: Vec<GuestCache>) -> Self {
            let none = Limits::default();
            Self { pool: Pool::new(none), now: Duration::ZERO, guests }
        }

        /// Runs for some seconds. Returns the number of decisions.
        fn run(&mut self, seconds: u64, others: u64) -> usize {
            let mut changes = 0;
            for _ in 0..2 * seconds {
                self.now += Duration::from_millis(500);
                let used: u64 = self.guests.iter().map(|guest| guest.heard.report.used_bytes).sum();
                let available = HOST.saturating_sub(others * MIB + used);
                let reading = Reading { available, total: HOST, waiting: 0.0 };
                changes +=
                    usize::from(self.pool.decide(self.now, reading, None, &self.guests).is_some());
                let grants: Vec<(Peer, u64)> = self.pool.grants().collect();
                for (guest, (peer, bytes)) in self.guests.iter_mut().zip(grants) {
                    assert_eq!(guest.heard.peer, peer);
                    guest.heard.report.used_bytes = bytes;
                }
            }
            changes
        }

        fn granted(&self) -> Vec<u64> {
            self.pool.grants().map(|(_, bytes)| bytes / MIB).collect()
        }
    }

    #[test]
    fn guests_give_up_where_it_costs_fewest_hits_and_have_it_back_later() {
        let early = guest(1, 0.5, &[0.8, 0.84, 0.87, 0.9]);
        let late = guest(2, 0.5, &[0.2, 0.4, 0.6, 0.9]);
        let mut host = Host::new(vec![early, late]);
        host.run(30, 2048);
        assert_eq!(host.granted(), [256, 256], "there is room for all");
        host.run(5, 3400);
        let short = host.granted();
        assert!(short[0] < short[1] && short[0] >= 16, "{short:?}");
        host.run(600, 2048);
        // All sizes that bring hits.
        let later = host.granted();
        assert!(later[0] >= 240 && later[1] >= 240, "{later:?}");
        let settled = host.run(3600, 2048);
        assert_eq!(settled, 0, "it swings");
    }

    /// A VM whose cache comes up takes nothing from an existing one while memory suffices, and a
    /// shortage is not undone by it.
    #[test]
    fn a_guest_that_comes_shares_what_there_is() {
        let mut first = guest(1, 1.0, &[]);
        first.heard.report.wanted_bytes = 512 * MIB;
        first.heard.report.used_bytes = 512 * MIB;
        let mut host = Host::new(vec![first]);
        host.run(60, 3400);
        let alone = host.granted()[0];
        assert!(alone > 32 && alone < 256, "{alone}");
        let mut second = guest(2, 0.5, &[]);
        second.heard.report.used_bytes = 0;
        host.guests[0].weight = 0.5;
        host.guests.push(second);
        host.run(1, 3400);
        let both = host.granted();
        assert!(both[0] > 32 && both[1] > 16, "{both:?}");
        assert!(both[0] + both[1] <= alone + 256, "{both:?} after {alone}");
        host.guests.remove(0);
        host.run(1, 3400);
        assert_eq!(host.granted().len(), 1);
    }

    /// The guest claims more than its VM's memory, and an impossible hit ratio.
    #[test]
    fn a_guest_that_claims_too_much_gets_no_more_than_its_vm_has() {
        let mut claims = guest(1, 0.5, &[f64::INFINITY]);
        claims.heard.report.wanted_bytes = u64::MAX;
        let mut host = Host::new(vec![claims, guest(2, 0.5, &[0.1, 0.2, 0.3, 0.4])]);
        host.run(2, 1024);
        assert_eq!(host.granted(), [1024, 256]);
        host.run(60, 2700);
        let short = host.granted();
        assert!(short[0] < 1024 && short[1] * 4 >= short[0] + short[1], "{short:?}");
    }

    /// Regression: the sum overflowed.
    #[test]
    fn guests_that_say_that_they_use_more_than_there_is_are_not_believed() {
        let mut host = Host::new(vec![guest(1, 0.5, &[]), guest(2, 0.5, &[])]);
        for guest in &mut host.guests {
            guest.heard.report.used_bytes = u64::MAX;
        }
        let short = Reading { available: HOST / 32, total: HOST, waiting: 0.0 };
        host.pool.decide(host.now, short, None, &host.guests);
        assert!(host.granted().iter().all(|part| (16..256).contains(part)), "{:?}", host.granted());
    }

    /// Regression: all of a shortage was taken from the remaining guests, and given to all when it
    /// ended.
    #[test]
    fn a_guest_that_comes_and_goes_and_wants_more_and_less_takes_nothing_from_others() {
        let mut host = Host::new(vec![guest(1, 0.5, &[]), guest(2, 0.5, &[])]);
        host.run(60, 3400);
        let before = host.granted();
        assert!(before[0] > 32 && before[0] + before[1] < 256, "{before:?}");
        let is_as_before = |host: &Host| {
            let now = host.granted();
            assert!((before[0] - 1..=before[0]).contains(&now[0]), "{now:?} after {before:?}");
            assert!((before[1] - 1..=before[1]).contains(&now[1]), "{now:?} after {before:?}");
        };
        for _ in 0..20 {
            // It is silent, or disconnected; it keeps its memory.
            let other = host.guests.remove(1);
            host.run(1, 3400 + before[1]);
            assert!(host.granted()[0] >= before[0], "{:?} after {before:?}", host.granted());
            host.guests.push(other);
            host.run(1, 3400);
            is_as_before(&host);
        }
        for wanted in [0, 256 * MIB].repeat(20) {
            host.guests[1].heard.report.wanted_bytes = wanted;
            host.run(1, 3400);
        }
        assert_eq!(host.run(61, 3400), 0, "it swings");
        is_as_before(&host);
    }
}
