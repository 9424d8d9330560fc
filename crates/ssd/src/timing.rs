//! Timing of the drive. The link, the channels and the dies work in parallel: the link handles one
//! command at a time, a channel one transfer, and a die one program or erase, also for the
//! collector's copies.

use std::time::Duration;

/// Costs of the drive's operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Bytes of data per second on the link.
    pub write: f64,
    /// Least time of a command.
    pub command: Duration,
    /// Time of a TRIM, in addition.
    pub trim: Duration,
    /// Time in which a die programs a unit. Without one all dies together program as fast as the
    /// link transfers: a data sheet gives the speed of both together.
    pub program: Option<Duration>,
    /// Time in which the dies erase a block.
    pub erase: Duration,
    /// Dies, over which the units of an erase block are spread in turn.
    pub dies: u32,
    /// Channels; die d is on channel d modulo their number.
    pub channels: u32,
    /// Bytes of data per second on a channel. Without a rate channels are never the limit.
    pub channel: Option<f64>,
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
        Self {
            write,
            command,
            trim: Duration::ZERO,
            program: None,
            erase: Duration::ZERO,
            dies: 1,
            channels: 1,
            channel: None,
        }
    }

    /// Returns the nanoseconds of a command with this much data on the link. The next command
    /// overlaps with the data of the previous one: the slower of the two counts.
    pub fn command_ns(&self, bytes: u64) -> u64 {
        (self.command.as_nanos() as u64).max((bytes as f64 * 1e9 / self.write) as u64)
    }

    /// Returns the nanoseconds in which a die programs a unit.
    pub fn program_ns(&self, unit_bytes: u64) -> u64 {
        let by_rate = (unit_bytes as f64 * 1e9 * f64::from(self.dies) / self.write) as u64;
        self.program.map_or(by_rate, |program| program.as_nanos() as u64)
    }

    /// Returns the nanoseconds in which a channel transfers a unit.
    pub fn transfer_ns(&self, unit_bytes: u64) -> u64 {
        self.channel.map_or(0, |rate| (unit_bytes as f64 * 1e9 / rate) as u64)
    }
}

/// One resource: its busy nanoseconds, and the time at which it becomes free.
#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    busy: u64,
    free: u64,
}

impl Lane {
    /// Adds work. Returns when it completes.
    fn take_on(&mut self, now: u64, work: u64) -> u64 {
        self.busy += work;
        self.free = self.free.max(now) + work;
        self.free
    }
}

/// Work of a die, and of its channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct DieWork {
    pub die: usize,
    /// Nanoseconds for which the die works.
    pub program: u64,
    /// Units on the channel, and the nanoseconds of each.
    pub transfers: u64,
    pub transfer: u64,
}

/// Work of the drive's resources.
#[derive(Clone, Debug, Default)]
pub struct Work {
    link: Lane,
    channels: Vec<Lane>,
    dies: Vec<Lane>,
}

impl Work {
    pub fn new(timing: &Timing) -> Self {
        let lanes = |number: u32| vec![Lane::default(); number as usize];
        Self { link: Lane::default(), channels: lanes(timing.channels), dies: lanes(timing.dies) }
    }

    /// Adds work of a command. Returns when it completes: after all that its dies had to do before.
    pub fn take_on(
        &mut self,
        now: u64,
        link: u64,
        of_dies: impl IntoIterator<Item = DieWork>,
    ) -> u64 {
        let mut done = self.link.take_on(now, link);
        for DieWork { die, program, transfers, transfer } in of_dies {
            let channel = die % self.channels.len();
            let here = self.channels[channel].take_on(now, transfers * transfer);
            // It programs the first unit while the next ones are transferred.
            let first_here = here - transfers.saturating_sub(1) * transfer;
            done = done.max(here).max(self.dies[die].take_on(first_here, program));
        }
        done
    }

    /// Adds work of a command that completes after all that the drive had to do before.
    pub fn take_on_last(&mut self, now: u64, link: u64) -> u64 {
        let of_dies = (0..self.dies.len()).map(|die| DieWork { die, ..DieWork::default() });
        self.take_on(now, link, of_dies)
    }

    /// Returns the busy time of the busiest resource since `before`.
    pub fn since(&self, before: &Self) -> Duration {
        let busy = self.lanes().zip(before.lanes()).map(|(now, before)| now.busy - before.busy);
        Duration::from_nanos(busy.max().unwrap_or_default())
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        [&self.link].into_iter().chain(&self.channels).chain(&self.dies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper's +41 % of sequential over random writes on this drive.
    #[test]
    fn a_command_costs_what_the_data_sheet_says() {
        let timing = Timing::SATA2014;
        let new = Work::new(&timing);
        let (mut random, mut sequential) = (new.clone(), new.clone());
        let programs =
            |units| [DieWork { program: units * timing.program_ns(4096), ..DieWork::default() }];
        for _ in 0..1024 {
            random.take_on(0, timing.command_ns(4096), programs(1));
        }
        sequential.take_on(0, timing.command_ns(4 << 20), programs(1024));
        let [random, sequential] = [random, sequential].map(|it| it.since(&new));
        let gain = random.as_secs_f64() / sequential.as_secs_f64();
        assert!((1.39..1.42).contains(&gain), "{gain}");
    }

    /// Takes on a program of 400 us for each of these dies at once. Returns when each completes, in
    /// microseconds.
    fn programs(timing: Timing, dies: &[usize]) -> Vec<u64> {
        let mut work = Work::new(&timing);
        let mut complete = |die| {
            let transfer = timing.transfer_ns(4096);
            let of_die = DieWork { die, program: 400_000, transfers: 1, transfer };
            work.take_on(0, 0, [of_die]) / 1000
        };
        dies.iter().map(|die| complete(*die)).collect()
    }

    #[test]
    fn requests_wait_for_the_same_die_and_for_the_same_channel() {
        let timing = Timing { dies: 4, ..Timing::SATA2014 };
        assert_eq!(programs(timing, &[0, 1, 2, 3, 1]), [400, 400, 400, 400, 800]);
        // A unit takes 204.8 us on a channel.
        let timing = Timing { channels: 2, channel: Some(20e6), ..timing };
        assert_eq!(programs(timing, &[0, 1, 2, 3]), [604, 604, 809, 809]);
        let timing = Timing { channels: 1, ..timing };
        assert_eq!(programs(timing, &[0, 1, 2, 3]), [604, 809, 1014, 1219]);
    }

    #[test]
    fn dies_together_are_as_fast_as_the_data_sheet() {
        let timing = Timing { dies: 16, ..Timing::SATA2014 };
        let one = Timing::SATA2014.program_ns(4096);
        assert_eq!(timing.program_ns(4096) / 16, one);
    }
}
