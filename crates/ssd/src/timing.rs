//! How long the drive takes. Two parts work side by side: the link takes one command after the
//! other, and the flash programs and erases, which the collector's copies take part in.

use std::time::Duration;

/// What the parts of the work take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Bytes a second of data.
    pub write: f64,
    /// A command whose data takes less.
    pub command: Duration,
    /// A TRIM, besides that.
    pub trim: Duration,
    /// Programming a unit, as often as the whole flash does it. Without one it takes as long as
    /// the unit's data over the link: a data sheet tells how fast both are together.
    pub program: Option<Duration>,
    /// Erasing a block, in the same way.
    pub erase: Duration,
}

impl Timing {
    /// Samsung 850 PRO, 256 GB (2014): its data sheet has 520 MB/s, and 90,000 writes of 4 KiB a
    /// second.
    pub const SATA2014: Self = Self::of_data_sheet(520e6, Duration::from_nanos(11_100));
    /// Intel X25-M G2: 100 MB/s and 8,600 writes of 4 KiB a second by its data sheet; 1.5 ms a
    /// TRIM, whatever its length (Kang and others, the paper behind FTRIM, 4.3).
    pub const X25M: Self = Self {
        trim: Duration::from_micros(1500),
        ..Self::of_data_sheet(100e6, Duration::from_nanos(116_000))
    };
    /// Samsung 960 PRO, 512 GB: 2,100 MB/s, and 330,000 writes of 4 KiB a second.
    pub const NVME: Self = Self::of_data_sheet(2100e6, Duration::from_nanos(3_030));
    /// Solidigm D5-P5336: 3,200 MB/s, and 930,000 commands (reads of 4 KiB) a second.
    pub const QLC: Self = Self::of_data_sheet(3200e6, Duration::from_nanos(1_075));

    const fn of_data_sheet(write: f64, command: Duration) -> Self {
        Self { write, command, trim: Duration::ZERO, program: None, erase: Duration::ZERO }
    }

    /// Nanoseconds that the link takes for a command with so much data. It takes the next command
    /// while it moves the data of the one before: the slower of the two counts.
    pub fn command_ns(&self, bytes: u64) -> u64 {
        (self.command.as_nanos() as u64).max((bytes as f64 * 1e9 / self.write) as u64)
    }

    /// Nanoseconds that the flash takes to program a unit of so many bytes.
    pub fn program_ns(&self, unit_bytes: u64) -> u64 {
        let by_rate = (unit_bytes as f64 * 1e9 / self.write) as u64;
        self.program.map_or(by_rate, |program| program.as_nanos() as u64)
    }
}

/// Nanoseconds of work that link and flash have had, and when they will be done with it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    link: u64,
    flash: u64,
    link_free: u64,
    flash_free: u64,
}

impl Work {
    /// Takes more work on, and returns when that will be done.
    pub fn take_on(&mut self, now: u64, link: u64, flash: u64) -> u64 {
        (self.link, self.flash) = (self.link + link, self.flash + flash);
        self.link_free = self.link_free.max(now) + link;
        self.flash_free = self.flash_free.max(now) + flash;
        self.link_free.max(self.flash_free)
    }

    /// How long the part has worked that had more to do, since `before`.
    pub fn since(&self, before: &Self) -> Duration {
        Duration::from_nanos((self.link - before.link).max(self.flash - before.flash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's +41 % of sequential over random writes on this drive.
    #[test]
    fn a_command_costs_what_the_data_sheet_says() {
        let (mut random, mut sequential) = (Work::default(), Work::default());
        let timing = Timing::SATA2014;
        let flash = timing.program_ns(4096);
        for _ in 0..1024 {
            random.take_on(0, timing.command_ns(4096), flash);
        }
        sequential.take_on(0, timing.command_ns(4 << 20), 1024 * flash);
        let [random, sequential] = [random, sequential].map(|it| it.since(&Work::default()));
        let gain = random.as_secs_f64() / sequential.as_secs_f64();
        assert!((1.39..1.42).contains(&gain), "{gain}");
    }
}
