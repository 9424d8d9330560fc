//! Decides about operations that a power cut leaves uncertain.

use std::ops::Range;

use fastrand::Rng;

use super::change::Change;

/// Ranges of more pieces than this are cut once or twice and not scattered: the list would be long.
const SCATTERED_MAX: u64 = 4096;

/// Decides what a power cut or a killed process leaves of operations that were not durable.
///
/// The same fate, used for the same moments in the same order, makes the same decisions.
#[derive(Clone, Debug)]
pub struct Fate(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Nothing,
    Everything,
    Subset(u64),
    Seeded { random: Rng, keep_percent: Option<u8>, torn_percent: Option<u8> },
}

/// The decision about one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Absent,
    Whole,
    /// These pieces of its range survive, in bytes of the file.
    Torn(Vec<Range<u64>>),
}

/// Strategy of a seeded fate for one crash. Even odds for each operation would hardly ever omit, or
/// keep, a single one; and those cases expose most bugs.
enum Style {
    Each { percent: u8 },
    Only(usize),
    AllBut(usize),
    First(usize),
}

impl Fate {
    /// Keeps only what is durable.
    pub fn nothing_more() -> Self {
        Self(Kind::Nothing)
    }

    /// Keeps everything, including operations in flight.
    pub fn everything() -> Self {
        Self(Kind::Everything)
    }

    /// Keeps the n-th undecided operation, whole, if bit n is set; those beyond the 64th are lost.
    pub fn subset(bits: u64) -> Self {
        Self(Kind::Subset(bits))
    }

    /// Allows everything possible: operations are lost, whole or torn, and those that overlapped in
    /// time take effect in any order.
    pub fn seeded(seed: u64) -> Self {
        let random = Rng::with_seed(seed);
        Self(Kind::Seeded { random, keep_percent: None, torn_percent: None })
    }

    /// Makes a seeded fate keep this percentage of the operations. Without it, each crash uses a
    /// strategy of its own: few or most are kept, all but one, a single one, or the first ones.
    #[must_use]
    pub fn keep_percent(mut self, percent: u8) -> Self {
        if let Kind::Seeded { keep_percent, .. } = &mut self.0 {
            *keep_percent = Some(percent);
        }
        self
    }

    /// Makes a seeded fate tear this percentage of the operations that can be torn. Without it,
    /// each crash tears none, some or most.
    #[must_use]
    pub fn torn_percent(mut self, percent: u8) -> Self {
        if let Kind::Seeded { torn_percent, .. } = &mut self.0 {
            *torn_percent = Some(percent);
        }
        self
    }

    /// Decides about all undecided operations of one crash.
    pub(super) fn verdicts(&mut self, undecided: &[&Change]) -> Vec<Verdict> {
        let count = undecided.len();
        match &mut self.0 {
            Kind::Nothing => vec![Verdict::Absent; count],
            Kind::Everything => vec![Verdict::Whole; count],
            Kind::Subset(bits) => (0..count).map(|n| whole_if(bit(*bits, n))).collect(),
            Kind::Seeded { random, keep_percent, torn_percent } => {
                let style = match keep_percent {
                    Some(percent) => Style::Each { percent: *percent },
                    None => Style::any(random, count),
                };
                let torn = torn_percent.unwrap_or_else(|| [0, 0, 15, 60][random.usize(..4)]);
                undecided
                    .iter()
                    .enumerate()
                    .map(|(n, change)| {
                        let torn = chance(random, torn).then(|| tear(random, change)).flatten();
                        torn.unwrap_or_else(|| whole_if(style.keeps(random, n)))
                    })
                    .collect()
            }
        }
    }

    /// Chooses when, between beginning and end, an operation took effect.
    pub(super) fn instant(&mut self, begin: u64, end: u64) -> u64 {
        match &mut self.0 {
            Kind::Seeded { random, .. } => random.u64(begin..=end),
            Kind::Nothing | Kind::Everything | Kind::Subset(_) => end,
        }
    }
}

impl Style {
    fn any(random: &mut Rng, count: usize) -> Self {
        let one = random.usize(..count.max(1));
        match random.u8(..8) {
            0 => Self::Only(one),
            1 => Self::AllBut(one),
            2 => Self::First(one),
            _ => Self::Each { percent: [0, 5, 30, 50, 70, 95, 100][random.usize(..7)] },
        }
    }

    fn keeps(&self, random: &mut Rng, n: usize) -> bool {
        match self {
            Self::Each { percent } => chance(random, *percent),
            Self::Only(one) => n == *one,
            Self::AllBut(one) => n != *one,
            Self::First(count) => n < *count,
        }
    }
}

fn whole_if(kept: bool) -> Verdict {
    if kept { Verdict::Whole } else { Verdict::Absent }
}

fn bit(bits: u64, n: usize) -> bool {
    n < 64 && bits >> n & 1 == 1
}

fn chance(random: &mut Rng, percent: u8) -> bool {
    random.u8(..100) < percent
}

/// Keeps some pieces of a change and not others; `None` if it has only one piece.
fn tear(random: &mut Rng, change: &Change) -> Option<Verdict> {
    let unit = *random.choice(change.tear_units())?;
    let pieces = Pieces { range: change.range(), unit };
    let count = pieces.count();
    if count < 2 {
        return None;
    }
    let cut = random.u64(1..count);
    let parts = match random.u8(..3) {
        0 => vec![pieces.bytes(0..cut)],
        1 => vec![pieces.bytes(cut..count)],
        _ if count > SCATTERED_MAX => {
            vec![pieces.bytes(0..cut), pieces.bytes(random.u64(cut..count)..count)]
        }
        _ => (0..count).filter(|_| random.bool()).map(|n| pieces.bytes(n..n + 1)).collect(),
    };
    Some(Verdict::Torn(parts))
}

/// A range divided at multiples of a unit.
struct Pieces {
    range: Range<u64>,
    unit: u64,
}

impl Pieces {
    fn first(&self) -> u64 {
        self.range.start / self.unit
    }

    fn count(&self) -> u64 {
        self.range.end.div_ceil(self.unit) - self.first()
    }

    /// Returns the bytes of a run of pieces.
    fn bytes(&self, run: Range<u64>) -> Range<u64> {
        let start = (self.first() + run.start) * self.unit;
        let end = (self.first() + run.end) * self.unit;
        start.max(self.range.start)..end.min(self.range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_at_the_drives_sectors_not_at_the_writes() {
        let pieces = Pieces { range: 512..9000, unit: 4096 };
        assert_eq!(pieces.count(), 3);
        assert_eq!(pieces.bytes(0..1), 512..4096);
        assert_eq!(pieces.bytes(1..3), 4096..9000);
    }

    #[test]
    fn what_is_torn_is_neither_whole_nor_made_up() {
        let range = 512..1 << 30;
        let mut random = Rng::with_seed(1);
        for _ in 0..100 {
            let Some(Verdict::Torn(parts)) = tear(&mut random, &Change::Punch(range.clone()))
            else {
                panic!("a large punch was not torn");
            };
            assert!(parts.iter().all(|part| part.start >= 512 && part.end <= 1 << 30));
            assert!(parts != std::slice::from_ref(&range));
        }
        let sector = Change::Write { at: 512, data: [0; 512].into() };
        assert_eq!(tear(&mut random, &sector), None, "half a sector");
        assert_eq!(tear(&mut random, &Change::SetSize(5)), None);
    }
}
