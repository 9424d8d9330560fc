//! Shares a number of bytes out between caches. Pure functions.
//!
//! Each cache has a floor: its minimum, and half of the share that its weight gives it, whatever
//! the others claim. The rest goes, in steps, to the cache with the greatest gain: the slope of its
//! hit ratio times its weight. So the gain of a guest with a false curve is bounded by the others'
//! weights: it can take at most half of their shares.

use flowstone_memory::message::CURVE_POINTS_MAX;

/// Steps in which the rest is given out.
const STEPS: u64 = 256;
/// Least size of a step.
const STEP_MIN: u64 = 1 << 20;

/// A cache that takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its weight, relative to those of the other members.
    pub weight: f64,
    /// Minimum size.
    pub min: u64,
    /// Largest useful size.
    pub max: u64,
    /// Hit ratios at sizes in equal steps up to `max`; empty if unknown.
    pub curve: Vec<f64>,
}

/// Shares `bytes` out. The sum exceeds `bytes` only if the minimums do.
pub fn share_out(bytes: u64, members: &[Member]) -> Vec<u64> {
    let weights: f64 = members.iter().map(|member| member.weight).sum();
    let mut parts: Vec<u64> =
        members.iter().map(|member| member.floor(bytes, member.weight / weights)).collect();
    // Minimums may leave less than the other floors.
    let excess = parts.iter().sum::<u64>().saturating_sub(bytes);
    take_above_minimums(&mut parts, members, excess);
    let mut left = bytes.saturating_sub(parts.iter().sum());
    let curves: Vec<Curve> = members.iter().map(Curve::of).collect();
    let step = (left / STEPS).max(STEP_MIN);
    while left > 0 {
        let room = |at: &usize| members[*at].max > parts[*at];
        let gain = |at: usize| members[at].weight * curves[at].slope(parts[at]);
        let best = (0..members.len()).filter(room).max_by(|a, b| gain(*a).total_cmp(&gain(*b)));
        let Some(best) = best else { break };
        let given = step.min(left).min(members[best].max - parts[best]);
        parts[best] += given;
        left -= given;
    }
    parts
}

/// Takes `excess` bytes from the parts above the minimums, in proportion.
fn take_above_minimums(parts: &mut [u64], members: &[Member], excess: u64) {
    let above = |part: u64, member: &Member| part - member.min.min(part);
    let sum: u64 = parts.iter().zip(members).map(|(part, member)| above(*part, member)).sum();
    if excess == 0 || sum == 0 {
        return;
    }
    for (part, member) in parts.iter_mut().zip(members) {
        let share = u128::from(above(*part, member)) * u128::from(excess.min(sum));
        *part -= share.div_ceil(sum.into()) as u64;
    }
}

impl Member {
    fn floor(&self, bytes: u64, share: f64) -> u64 {
        let half = (bytes as f64 * share / 2.0) as u64;
        half.max(self.min).min(self.max)
    }
}

/// A claimed curve made plausible: monotonic and within 0..=1.
pub struct Curve {
    points: Vec<f64>,
    step: u64,
}

impl Curve {
    /// Returns the curve of a member, if it is known.
    pub fn known(member: &Member) -> Option<Self> {
        (!member.curve.is_empty()).then(|| Self::of(member))
    }

    fn of(member: &Member) -> Self {
        let claimed = &member.curve[..member.curve.len().min(CURVE_POINTS_MAX)];
        // Unknown: each byte has the same value.
        let claimed = if claimed.is_empty() { &[1.0] } else { claimed };
        let mut most = 0.0_f64;
        let rising = claimed.iter().map(|ratio| {
            // `min` of a number and NaN is the number.
            most = most.max(ratio.min(1.0));
            most
        });
        let points: Vec<f64> = std::iter::once(0.0).chain(rising).collect();
        let step = (member.max / (points.len() as u64 - 1)).max(1);
        Self { points, step }
    }

    /// Returns the hit ratio gained per byte beyond `bytes`, for the best following point: a step
    /// without gain may lead to one with gain.
    fn slope(&self, bytes: u64) -> f64 {
        let now = self.at(bytes);
        let next = (bytes / self.step + 1) as usize;
        let to_point = |(at, ratio): (usize, &f64)| {
            (ratio - now) / (at as u64 * self.step - bytes).max(1) as f64
        };
        self.points.iter().enumerate().skip(next).map(to_point).fold(0.0, f64::max)
    }

    /// Returns the hit ratio at a size of `bytes`.
    pub fn at(&self, bytes: u64) -> f64 {
        let (at, part) = ((bytes / self.step) as usize, (bytes % self.step) as f64);
        let last = self.points.len() - 1;
        let (before, after) = (self.points[at.min(last)], self.points[(at + 1).min(last)]);
        before + (after - before) * part / self.step as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn member(weight: f64, curve: &[f64]) -> Member {
        Member { weight, min: 16 * MIB, max: 256 * MIB, curve: curve.to_vec() }
    }

    #[test]
    fn with_room_for_all_each_has_what_it_can_use() {
        let members = [member(0.9, &[0.1, 0.1]), member(0.1, &[])];
        assert_eq!(share_out(512 * MIB, &members), [256 * MIB; 2]);
        assert_eq!(share_out(u64::MAX, &members), [256 * MIB; 2]);
        assert!(share_out(7, &[]).is_empty());
    }

    #[test]
    fn bytes_go_where_they_bring_hits() {
        // The first has all its hits in a quarter, the second in the whole.
        let members = [member(1.0, &[0.9, 0.9, 0.9, 0.9]), member(1.0, &[0.1, 0.3, 0.6, 0.9])];
        let parts = share_out(320 * MIB, &members);
        assert!(parts[0] >= 64 * MIB && parts[0] <= 81 * MIB, "{parts:?}");
        assert_eq!(parts.iter().sum::<u64>(), 320 * MIB);
        // A step that brings nothing is taken for the one behind it.
        let late = [member(1.0, &[0.0, 0.0, 0.0, 0.9]), member(1.0, &[0.1, 0.1, 0.1, 0.1])];
        assert_eq!(share_out(320 * MIB, &late)[0], 240 * MIB);
    }

    fn members() -> impl Strategy<Value = Vec<Member>> {
        let curve = prop::collection::vec(prop::num::f64::ANY, 0..20);
        let member =
            (1u32..100, 0u64..64, 0u64..512, curve).prop_map(|(weight, min, more, curve)| {
                let (min, max) = (min * MIB, (min + more) * MIB);
                Member { weight: f64::from(weight), min, max, curve }
            });
        prop::collection::vec(member, 1..6)
    }

    proptest! {
        /// For any claims: no byte is given twice, none is withheld that a member could use, and
        /// each member gets its minimum and half of its weighted share.
        #[test]
        fn no_claim_takes_a_floor_away(members in members(), bytes in 0u64..2048) {
            let bytes = bytes * MIB;
            let parts = share_out(bytes, &members);
            let (minimums, most) = members.iter().fold((0, 0), |(min, max), member| {
                (min + member.min, max + member.max)
            });
            let sum: u64 = parts.iter().sum();
            let wanted = bytes.max(minimums).min(most);
            prop_assert!(sum <= wanted && sum + members.len() as u64 >= wanted, "{sum} of {wanted}");
            let weights: f64 = members.iter().map(|member| member.weight).sum();
            let floors: u64 =
                members.iter().map(|member| member.floor(bytes, member.weight / weights)).sum();
            for (part, member) in parts.iter().zip(&members) {
                prop_assert!((member.min..=member.max).contains(part));
                let floor = member.floor(bytes, member.weight / weights);
                prop_assert!(*part >= floor || floors > bytes, "{part} for {floor}");
            }
        }
    }
}
