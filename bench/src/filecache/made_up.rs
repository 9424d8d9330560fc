//! Synthetic traces of file uses: skewed, with scans, uniform, and with a moving working set.

use clap::ValueEnum;
use fastrand::Rng;
use flowstone_policy::simulator::Line;
use flowstone_policy::{FileId, Use};

const FILES: u64 = 20_000;
const USES: u64 = 400_000;
/// One use in ten writes.
const WRITE_ONE_IN: u64 = 10;

/// Which trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// Files are used with the frequencies of Zipf's law, exponent 0.9.
    Zipf9,
    /// The same with the exponent 0.7.
    Zipf7,
    /// Three tenths of the uses of `zipf9` go through files that are used once.
    Scan,
    /// All files alike, as Postmark has them.
    Uniform,
    /// A tenth of the files is used, another one after each tenth of the trace.
    Moving,
    /// All files in turn, again and again.
    Loop,
}

impl Load {
    /// Returns the trace; the same for the same seed.
    pub fn lines(self, seed: u64) -> Vec<Line> {
        let mut rng = Rng::with_seed(seed);
        let sizes: Vec<u64> = (0..FILES).map(|_| size(&mut rng)).collect();
        let exponent = if self == Self::Zipf7 { 0.7 } else { 0.9 };
        let zipf = Zipf::new(exponent);
        let mut once = FILES;
        (0..USES)
            .map(|at| {
                let usage = if rng.u64(0..WRITE_ONE_IN) == 0 { Use::Write } else { Use::Read };
                if self == Self::Scan && rng.u64(0..10) < 3 {
                    once += 1;
                    return Line { usage, file: FileId(once), bytes: size(&mut rng) };
                }
                let file = match self {
                    Self::Zipf9 | Self::Zipf7 | Self::Scan => zipf.draw(&mut rng),
                    Self::Uniform => rng.u64(0..FILES),
                    Self::Moving => at / (USES / 10) * (FILES / 10) + rng.u64(0..FILES / 10),
                    Self::Loop => at % FILES,
                };
                Line { usage, file: FileId(file), bytes: sizes[file as usize] }
            })
            .collect()
    }
}

/// Returns a size of 4 KiB to 1 MiB, with all powers of two equally frequent.
fn size(rng: &mut Rng) -> u64 {
    let base = 4096_u64 << rng.u32(0..8);
    base + rng.u64(0..base)
}

/// Draws ranks by inversion of the cumulative distribution.
struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    fn new(exponent: f64) -> Self {
        let mut sum = 0.0;
        let frequency = |rank: u64| {
            sum += ((rank + 1) as f64).powf(-exponent);
            sum
        };
        Self { cumulated: (0..FILES).map(frequency).collect() }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let all = self.cumulated.last().expect("there are files");
        let at = rng.f64() * all;
        self.cumulated.partition_point(|sum| *sum < at).min(self.cumulated.len() - 1) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_trace_and_skew_is_skew() {
        assert_eq!(Load::Scan.lines(7), Load::Scan.lines(7));
        let lines = Load::Zipf9.lines(1);
        let first = lines.iter().filter(|line| line.file == FileId(0)).count();
        let last = lines.iter().filter(|line| line.file == FileId(FILES - 1)).count();
        assert!(first > 100 * last.max(1), "{first} {last}");
    }
}
