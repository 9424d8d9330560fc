//! Generated loads: writes of one block each.

use std::str::FromStr;

use flowstone_trace::{Class, Event, Kind};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Zipf};

/// Size of each write in bytes.
pub const BLOCK_BYTES: u64 = 4096;

/// Distribution of the written blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Generator {
    /// Each block equally often.
    Uniform,
    /// Zipf's law with this exponent: the n-th block n^-exponent times as often as the first.
    Zipf(f64),
    /// A percentage of the writes goes to a percentage of the blocks.
    HotCold {
        /// Percent of the writes.
        writes: f64,
        /// Percent of the blocks.
        blocks: f64,
    },
    /// In ascending order, cyclically.
    Sequential,
}

impl FromStr for Generator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').unwrap_or((text, ""));
        let known = match name {
            "uniform" if value.is_empty() => Some(Self::Uniform),
            "sequential" if value.is_empty() => Some(Self::Sequential),
            "zipf" => value.parse().ok().filter(|it| *it > 0.0 && *it < 10.0).map(Self::Zipf),
            "hotcold" => value.split_once('/').and_then(|(writes, blocks)| {
                let percent =
                    |text: &str| text.parse().ok().filter(|it: &f64| *it > 0.0 && *it < 100.0);
                Some(Self::HotCold { writes: percent(writes)?, blocks: percent(blocks)? })
            }),
            _ => None,
        };
        known.ok_or_else(|| {
            format!("no load is {text:?}; use uniform, zipf:0.99, hotcold:95/5 or sequential")
        })
    }
}

/// The endless sequence of a load's writes.
pub struct Writes {
    generator: Generator,
    random: SmallRng,
    zipf: Option<Zipf<f64>>,
    /// Permutation of the blocks, from frequency rank to place.
    places: Vec<u32>,
    blocks: u32,
    next: u32,
}

impl Writes {
    /// Makes the writes to a disk of this many blocks. The seed determines the places of blocks and
    /// the order of writes.
    pub fn new(generator: Generator, blocks: u32, seed: u64) -> Self {
        let is_skewed = matches!(generator, Generator::Zipf(_) | Generator::HotCold { .. });
        let mut places = Vec::new();
        if is_skewed {
            places = (0..blocks).collect();
            fastrand::Rng::with_seed(seed).shuffle(&mut places);
        }
        let zipf = match generator {
            Generator::Zipf(exponent) => Zipf::new(f64::from(blocks), exponent).ok(),
            _ => None,
        };
        Self { generator, random: SmallRng::seed_from_u64(seed), zipf, places, blocks, next: 0 }
    }

    fn next_block(&mut self) -> u32 {
        use rand::RngExt as _;
        match self.generator {
            Generator::Uniform => self.random.random_range(0..self.blocks),
            Generator::Sequential => {
                let block = self.next;
                self.next = if block + 1 == self.blocks { 0 } else { block + 1 };
                block
            }
            Generator::Zipf(_) => {
                let zipf = self.zipf.expect("made with the load");
                let rank = zipf.sample(&mut self.random) as u32;
                self.places[rank.clamp(1, self.blocks) as usize - 1]
            }
            Generator::HotCold { writes, blocks } => {
                // Each part has at least one block; a single block belongs to both.
                let cold = self.blocks - 1;
                let hot = ((f64::from(self.blocks) * blocks / 100.0) as u32).min(cold).max(1);
                let is_hot = self.random.random_bool(writes / 100.0);
                let ranks = if is_hot { 0..hot } else { hot.min(cold)..self.blocks };
                self.places[self.random.random_range(ranks) as usize]
            }
        }
    }
}

impl Iterator for Writes {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let offset = u64::from(self.next_block()) * BLOCK_BYTES;
        Some(Event::new(Kind::Write, offset, BLOCK_BYTES))
    }
}

/// Share of the disk that is written, at most, between two writes of a block that is soon written
/// again.
const SOON_SHARE: u32 = 4;

/// Tells apart the blocks that are soon written again, as SepBIT (FAST'22) infers it: those that
/// replace a block written not long before.
pub struct SoonAgain {
    /// Number of the last write to each block, from 1.
    last: Vec<u64>,
    writes: u64,
}

impl SoonAgain {
    pub fn new(blocks: u32) -> Self {
        Self { last: vec![0; blocks as usize], writes: 0 }
    }

    /// Returns a write of one block with its class: metadata, if it soon comes again.
    pub fn classified(&mut self, event: Event) -> Event {
        self.writes += 1;
        let soon = self.last.len() as u64 / u64::from(SOON_SHARE);
        let last = &mut self.last[(event.offset / BLOCK_BYTES) as usize];
        let before = std::mem::replace(last, self.writes);
        let is_soon = before > 0 && self.writes - before <= soon;
        Event { class: is_soon.then_some(Class::Metadata), ..event }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_was_written_not_long_ago_is_soon_written_again() {
        let mut soon = SoonAgain::new(8);
        let classes = [0, 1, 0, 1, 5, 6, 7, 0].map(|block| {
            let event = Event::new(Kind::Write, block * BLOCK_BYTES, BLOCK_BYTES);
            soon.classified(event).class.is_some()
        });
        assert_eq!(classes, [false, false, true, true, false, false, false, false]);
    }

    fn counts(generator: Generator) -> Vec<u32> {
        let mut counts = vec![0; 1000];
        for event in Writes::new(generator, 1000, 7).take(100_000) {
            counts[(event.offset / BLOCK_BYTES) as usize] += 1;
        }
        counts
    }

    #[test]
    fn loads_write_what_they_say() {
        let mut hot = counts(Generator::HotCold { writes: 95.0, blocks: 5.0 });
        assert!(hot[..50].iter().sum::<u32>() < 40_000, "the hot blocks are not scattered");
        hot.sort_unstable_by(|one, other| other.cmp(one));
        let share = f64::from(hot[..50].iter().sum::<u32>()) / 100_000.0;
        assert!((0.94..0.96).contains(&share), "{share}");
        let mut zipf = counts(Generator::Zipf(0.99));
        zipf.sort_unstable_by(|one, other| other.cmp(one));
        let ratio = f64::from(zipf[0]) / f64::from(zipf[9]);
        assert!((8.0..12.0).contains(&ratio), "{ratio}");
        assert!(counts(Generator::Uniform).iter().all(|count| (50..160).contains(count)));
        assert_eq!(counts(Generator::Sequential), [100; 1000]);
    }

    #[test]
    fn a_disk_of_one_block_has_a_hot_part_too() {
        for generator in ["uniform", "zipf:0.99", "hotcold:50/50", "sequential"] {
            let mut writes = Writes::new(generator.parse().unwrap(), 1, 1).take(100);
            assert!(writes.all(|it| it.offset == 0), "{generator}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_writes() {
        for generator in ["uniform", "zipf:1.2", "hotcold:80/20"] {
            let writes = |seed| {
                let generator = generator.parse().unwrap();
                Writes::new(generator, 500, seed).take(100).map(|it| it.offset).collect::<Vec<_>>()
            };
            assert_eq!(writes(1), writes(1));
            assert_ne!(writes(1), writes(2));
        }
    }

    #[test]
    fn what_is_no_load_is_an_error() {
        for text in ["zipf", "zipf:x", "hotcold:95", "hotcold:0/5", "uniform:1", "random"] {
            let said = text.parse::<Generator>().unwrap_err();
            assert!(said.starts_with(&format!("no load is {text:?}; use uniform")), "{said}");
        }
    }
}
