//! A limit and its syntax: `iops=20000,bw=200M,burst=2s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use flowstone_block::parse_size;

/// Rates that a disk or a group may use, and how much unused rate it may use later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per second.
    pub iops: Option<u64>,
    /// Bytes of reads and writes per second.
    pub bytes_per_s: Option<u64>,
    /// Credit, in time at these rates; at least [`Limit::BURST_MIN`].
    pub burst: Duration,
}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { iops: None, bytes_per_s: None, burst: Self::BURST_MIN };

    /// Default and least credit: a thread that wakes up this late loses nothing of the rate.
    pub const BURST_MIN: Duration = Duration::from_millis(10);

    const BURST_MAX: Duration = Duration::from_secs(3600);
    /// Rates above this are refused.
    const RATE_MAX: u64 = 1 << 50;

    /// Returns whether nothing is limited.
    pub const fn is_none(&self) -> bool {
        self.iops.is_none() && self.bytes_per_s.is_none()
    }

    /// Makes a limit of its parts' texts. Without a rate it is no limit.
    pub fn of_parts(
        iops: Option<&str>,
        bw: Option<&str>,
        burst: Option<&str>,
    ) -> Result<Self, String> {
        let iops = iops.map(|text| rate("iops", text, text.parse().ok())).transpose()?;
        let bytes_per_s = bw.map(|text| rate("bw", text, parse_size(text).ok())).transpose()?;
        if burst.is_some() && iops.is_none() && bytes_per_s.is_none() {
            return Err("`burst` without `iops` or `bw`; say what is limited".into());
        }
        let burst = burst.map(seconds).transpose()?.unwrap_or(Self::BURST_MIN);
        Ok(Self { iops, bytes_per_s, burst: burst.max(Self::BURST_MIN) })
    }
}

fn rate(key: &str, text: &str, value: Option<u64>) -> Result<u64, String> {
    value.filter(|rate| (1..=Limit::RATE_MAX).contains(rate)).ok_or_else(|| {
        let example = if key == "bw" { "bytes per second such as 200M" } else { "20000" };
        format!("`{key}={text}` is no rate; use {example}, or leave it out for no limit")
    })
}

/// Parses `2s`, `0.5s`, `500ms`.
fn seconds(text: &str) -> Result<Duration, String> {
    let (number, scale) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or("none"), 1.0),
    };
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let value = number.parse::<f64>().ok().filter(|_| is_plain).map(|value| value * scale);
    let fits = |value: &f64| *value <= Limit::BURST_MAX.as_secs_f64();
    value.filter(fits).map(Duration::from_secs_f64).ok_or_else(|| {
        format!("`burst={text}` is no time; use one such as 2s or 500ms, at most an hour")
    })
}

impl Default for Limit {
    fn default() -> Self {
        Self::NONE
    }
}

impl FromStr for Limit {
    type Err = String;

    /// Parses a limit; `off` is no limit.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::NONE);
        }
        let (mut iops, mut bw, mut burst) = (None, None, None);
        for part in text.split(',') {
            let wrong =
                || format!("`{part}` is no part of a limit; use iops=N,bw=SIZE,burst=TIME, or off");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let place = match key {
                "iops" => &mut iops,
                "bw" => &mut bw,
                "burst" => &mut burst,
                _ => return Err(wrong()),
            };
            if place.replace(value).is_some() {
                return Err(format!("`{text}` says `{key}` twice; say it once"));
            }
        }
        Self::of_parts(iops, bw, burst)
    }
}

impl fmt::Display for Limit {
    /// Writes the limit in the syntax that is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("off");
        }
        if let Some(iops) = self.iops {
            write!(f, "iops={iops},")?;
        }
        if let Some(bytes) = self.bytes_per_s {
            let units = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
            let unit = units.iter().find(|(factor, _)| bytes.is_multiple_of(*factor));
            let (factor, letter) = unit.copied().unwrap_or((1, ""));
            write!(f, "bw={}{letter},", bytes / factor)?;
        }
        write!(f, "burst={}s", self.burst.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        text.parse().unwrap()
    }

    #[test]
    fn a_limit_is_a_list_of_parts_or_off() {
        let whole = Limit {
            iops: Some(20_000),
            bytes_per_s: Some(200 << 20),
            burst: Duration::from_secs(2),
        };
        assert_eq!(limit("iops=20000,bw=200M,burst=2s"), whole);
        assert_eq!(limit("burst=2000ms,bw=200M,iops=20000"), whole);
        assert_eq!(limit("off"), Limit::NONE);
        let least = Limit { iops: Some(7), ..Limit::NONE };
        assert_eq!(limit("iops=7"), least);
        assert_eq!(limit("iops=7,burst=0s"), least, "less credit would cost rate");
        assert_eq!(limit("bw=1.5K,burst=0.5s").burst, Duration::from_millis(500));
    }

    #[test]
    fn what_is_printed_is_what_is_parsed() {
        for text in
            ["off", "iops=20000,bw=200M,burst=2s", "bw=1000,burst=0.01s", "iops=1,burst=0.5s"]
        {
            assert_eq!(limit(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_limit_is_refused_with_what_to_write() {
        for (text, why) in [
            ("", "use iops=N,bw=SIZE,burst=TIME, or off"),
            ("iops", "use iops=N,bw=SIZE,burst=TIME, or off"),
            ("iops=1,", "use iops=N,bw=SIZE,burst=TIME, or off"),
            ("rate=5", "use iops=N,bw=SIZE,burst=TIME, or off"),
            ("iops=0", "`iops=0` is no rate; use 20000, or leave it out"),
            ("iops=20k", "`iops=20k` is no rate"),
            ("bw=0", "`bw=0` is no rate; use bytes per second such as 200M"),
            ("bw=fast", "`bw=fast` is no rate"),
            ("iops=5,iops=6", "says `iops` twice"),
            ("burst=2s", "`burst` without `iops` or `bw`"),
            ("iops=5,burst=2", "use one such as 2s or 500ms"),
            ("iops=5,burst=-2s", "use one such as 2s or 500ms"),
            ("iops=5,burst=infs", "use one such as 2s or 500ms"),
            ("iops=5,burst=9999s", "at most an hour"),
        ] {
            let said = text.parse::<Limit>().unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
