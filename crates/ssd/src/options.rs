//! A drive in one line: `op=7%,unit=4K,block=512K,trim=on,gc=greedy,offset=0`, and its timing.

use std::str::FromStr;
use std::time::Duration;

use flowstone_block::parse_size;

use crate::timing::Timing;
use crate::victims::Policy;

/// Drives have eight or sixteen; each takes two open erase blocks.
const STREAMS_MAX: u8 = 16;
/// A drive of 8 TB has a few hundred dies.
const DIES_MAX: u32 = 1024;
/// Longest time of an operation, and least rate in millions of bytes a second: the nanoseconds of a
/// billion operations are counted.
const TIME_MAX: Duration = Duration::from_secs(10);
const RATE_MIN: f64 = 0.01;
/// Most over-provisioning, in percent.
pub const OP_PERCENT_MAX: f64 = 1000.0;

/// When the drive receives TRIMs for unused space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrimMode {
    /// At once, as on a device, or a file system with `-o discard`.
    On,
    /// Never, as on a file system that is not trimmed.
    Off,
    /// For all unused space after each time this many bytes have been written, as with `fstrim`.
    Batch(u64),
}

/// Properties of a drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsdOptions {
    /// Over-provisioning: (physical - logical) / logical.
    pub over_provisioning: f64,
    /// Bytes of a mapping unit, the least that the flash programs.
    pub unit_bytes: u64,
    /// Bytes of an erase block.
    pub block_bytes: u64,
    /// When it receives TRIMs.
    pub trim: TrimMode,
    /// Policy of the collector.
    pub gc: Policy,
    /// Write streams, beside that of all other writes.
    pub streams: u8,
    /// Offset of the first file, in bytes.
    pub offset_bytes: u64,
    /// Whether all of it has been written before, and is live.
    pub is_aged: bool,
    /// Its timing.
    pub timing: Timing,
}

impl Default for SsdOptions {
    fn default() -> Self {
        Self {
            over_provisioning: 0.07,
            unit_bytes: 4 << 10,
            block_bytes: 512 << 10,
            trim: TrimMode::On,
            gc: Policy::Greedy,
            streams: 0,
            offset_bytes: 0,
            is_aged: false,
            timing: Timing::SATA2014,
        }
    }
}

impl FromStr for SsdOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        let parts = text.split(',').filter(|part| !part.is_empty()).map(|part| {
            part.split_once('=').ok_or_else(|| {
                format!("{part:?} is no NAME=VALUE; a drive is like op=7%,unit=4K,block=512K")
            })
        });
        let mut parts = parts.collect::<Result<Vec<_>, _>>()?;
        // The profile first: it is what the others change, wherever it is written.
        parts.sort_by_key(|(name, _)| *name != "profile");
        for (name, value) in parts {
            options.set(name, value).map_err(|why| format!("{name}={value}: {why}"))?;
        }
        options.check()?;
        Ok(options)
    }
}

impl SsdOptions {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "op" => self.over_provisioning = percent(value)?,
            "unit" => self.unit_bytes = size(value)?,
            "block" => self.block_bytes = size(value)?,
            "offset" => self.offset_bytes = size(value)?,
            "trim" => self.trim = value.parse()?,
            "gc" => self.gc = value.parse()?,
            "streams" => self.streams = streams(value)?,
            "profile" => self.set_profile(value)?,
            "write" => self.timing.write = rate(value)?,
            "command" => self.timing.command = time(value)?,
            "trim-cost" => self.timing.trim = time(value)?,
            "program" => self.timing.program = Some(time(value)?),
            "erase" => self.timing.erase = time(value)?,
            "dies" => self.timing.dies = parallel(value)?,
            "channels" => self.timing.channels = parallel(value)?,
            "channel" => self.timing.channel = Some(rate(value)?),
            _ => {
                return Err("no such property; there are op, unit, block, trim, gc, streams, \
                            offset, profile, write, command, trim-cost, program, erase, dies, \
                            channels and channel"
                    .into());
            }
        }
        Ok(())
    }

    fn set_profile(&mut self, name: &str) -> Result<(), String> {
        let (timing, over_provisioning, unit_bytes) = match name {
            "sata2014" => (Timing::SATA2014, 0.07, 4 << 10),
            "x25m" => (Timing::X25M, 0.07, 4 << 10),
            "nvme" => (Timing::NVME, 0.07, 4 << 10),
            "qlc16k" => (Timing::QLC, 0.07, 16 << 10),
            _ => return Err("no such profile; there are sata2014, x25m, nvme and qlc16k".into()),
        };
        (self.timing, self.over_provisioning, self.unit_bytes) =
            (timing, over_provisioning, unit_bytes);
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let units = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
        if !units.contains(&self.unit_bytes) {
            return Err("unit is 4K, 8K, 16K, 32K or 64K".into());
        }
        let is_block = self.block_bytes.is_multiple_of(self.unit_bytes)
            && (2 * self.unit_bytes..=4 << 30).contains(&self.block_bytes);
        if !is_block {
            return Err("block is a multiple of unit, at least two of them and at most 4G".into());
        }
        if self.timing.channels > self.timing.dies {
            return Err("channels are at most as many as dies".into());
        }
        // Otherwise some dies have more units of each block than others, and all wait for them.
        let units = self.block_bytes / self.unit_bytes;
        if !units.is_multiple_of(u64::from(self.timing.dies)) {
            return Err(format!("dies divide the {units} units of a block, such as 4, 8 or 16"));
        }
        if !self.offset_bytes.is_multiple_of(4096) {
            return Err("offset is a multiple of 4K".into());
        }
        Ok(())
    }
}

impl FromStr for TrimMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "on" => Ok(Self::On),
            None if text == "off" => Ok(Self::Off),
            Some(("batch", bytes)) => match size(bytes)? {
                0 => Err("a batch has at least one byte".into()),
                bytes => Ok(Self::Batch(bytes)),
            },
            _ => Err("use on, off or batch:SIZE".into()),
        }
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "greedy" => Ok(Self::Greedy),
            "fifo" => Ok(Self::Fifo),
            "cb" => Ok(Self::CostBenefit),
            _ => Err("use greedy, fifo or cb".into()),
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

fn streams(text: &str) -> Result<u8, String> {
    let streams = text.parse().ok().filter(|streams| *streams <= STREAMS_MAX);
    streams.ok_or_else(|| format!("give a number of write streams from 0 to {STREAMS_MAX}"))
}

fn parallel(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=DIES_MAX).contains(number));
    number.ok_or_else(|| format!("give a number from 1 to {DIES_MAX}"))
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(number) if (0.0..=OP_PERCENT_MAX).contains(&number) => Ok(number / 100.0),
        _ => Err(format!("give a percentage such as 7%, up to {OP_PERCENT_MAX}%")),
    }
}

/// Parses bytes a second, in the millions of data sheets: `520M`.
fn rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('M').and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(number) if number >= RATE_MIN => Ok(number * 1e6),
        _ => Err("give millions of bytes a second such as 520M, at least .01M".into()),
    }
}

/// Parses `11.1us`, `1.5ms`.
fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("ns", 1e-9), ("s", 1.0)];
    let found = units.iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        Duration::try_from_secs_f64(number * seconds).ok().filter(|time| *time <= TIME_MAX)
    });
    found.ok_or_else(|| "give a time such as 11.1us or 1.5ms, up to 10s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_told_in_one_line() {
        let text = "op=28%,unit=16K,block=32M,trim=batch:1G,gc=fifo,streams=2,offset=256K";
        let options: SsdOptions = text.parse().unwrap();
        let expected = SsdOptions {
            over_provisioning: 0.28,
            unit_bytes: 16 << 10,
            block_bytes: 32 << 20,
            trim: TrimMode::Batch(1 << 30),
            gc: Policy::Fifo,
            streams: 2,
            offset_bytes: 256 << 10,
            ..SsdOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!("".parse::<SsdOptions>().unwrap(), SsdOptions::default());
        let spare_first: SsdOptions = "op=28%,unit=8K,profile=x25m".parse().unwrap();
        assert_eq!((spare_first.over_provisioning, spare_first.unit_bytes), (0.28, 8 << 10));
        let timed: SsdOptions = "profile=x25m,command=20us,write=200M".parse().unwrap();
        assert_eq!(timed.timing.command, Duration::from_micros(20));
        assert_eq!(timed.timing.trim, Duration::from_micros(1500));
    }

    #[test]
    fn what_is_wrong_with_a_drive_is_said() {
        for (text, why) in [
            ("op=7", "op=7: give a percentage such as 7%, up to 1000%"),
            ("unit=5K", "unit is 4K, 8K, 16K, 32K or 64K"),
            ("unit=16K,block=20K", "block is a multiple of unit"),
            ("trim=batch", "trim=batch: use on, off or batch:SIZE"),
            ("gc=best", "gc=best: use greedy, fifo or cb"),
            ("dies=0", "dies=0: give a number from 1 to 1024"),
            ("dies=2,channels=4", "channels are at most as many as dies"),
            ("dies=7", "dies divide the 128 units of a block"),
            ("erase=11s", "erase=11s: give a time such as 11.1us or 1.5ms, up to 10s"),
            ("write=1e-9M", "write=1e-9M: give millions of bytes a second"),
            ("streams=17", "streams=17: give a number of write streams from 0 to 16"),
            ("speed=1", "speed=1: no such property"),
            ("4K", "\"4K\" is no NAME=VALUE"),
            ("command=11", "command=11: give a time"),
            ("offset=1000", "offset is a multiple of 4K"),
            ("profile=mine", "profile=mine: no such profile"),
        ] {
            let said = text.parse::<SsdOptions>().unwrap_err();
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }
}
