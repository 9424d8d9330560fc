//! Timing of the drive. Two resources work in parallel: the link handles one command at a time, and
//! the flash programs and erases, also for the collector's copies.

use std::time::Duration;

/// Costs of the drive's operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Bytes of data per second.
    pub write: f64,
    /// Least time of a command.
    pub command: Duration,
    /// Time of a TRIM, in addition.
    pub trim: Duration,
    /// Time to program a unit at full parallelism of the flash. Without one it is the time of the
    /// unit's data on the link: a data sheet gives the speed of both together.
    pub program: Option<Duration>,
    /// Time to erase a block, likewise.
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

    /// Returns the nanoseconds of a command with this much data on the link. The next command
    /// overlaps with the data of the previous one: the slower of the two counts.
    pub fn command_ns(&self, bytes: u64) -> u64 {
        (self.command.as_nanos() as u64).max((bytes as f64 * 1e9 / self.write) as u64)
    }

    /// Returns the nanoseconds in which the flash programs a unit.
    pub fn program_ns(&self, unit_bytes: u64) -> u64 {
        let by_rate = (unit_bytes as f64 * 1e9 / self.write) as u64;
        self.program.map_or(by_rate, |program| program.as_nanos() as u64)
    }
}

/// Busy nanoseconds of link and flash, and the times at which they become free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    link: u64,
    flash: u64,
    link_free: u64,
    flash_free: u64,
}

impl Work {
    /// Adds work. Returns when it completes.
    pub fn take_on(&mut self, now: u64, link: u64, flash: u64) -> u64 {
        (self.link, self.flash) = (self.link + link, self.flash + flash);
        self.link_free = self.link_free.max(now) + link;
        self.flash_free = self.flash_free.max(now) + flash;
        self.link_free.max(self.flash_free)
    }

    /// Returns the busy time of the busier resource since `before`.
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
