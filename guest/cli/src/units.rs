//! Parsing of sizes and times.

use std::time::Duration;

use flowstone_memory::size::parse_size;

/// Parses a size that is not zero: `4096`, `64K`, `512MiB`, `1.5G`.
pub fn parse_space(text: &str) -> Result<u64, String> {
    match parse_size(text.trim())? {
        0 => Err("a size of 0 keeps nothing".into()),
        bytes if bytes >= 1 << 63 => Err(format!("{text:?} is more than any memory")),
        bytes => Ok(bytes),
    }
}

/// Parses a time: `3s`, `200ms`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write e.g. 3s or 200ms");
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1.0),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [("4096", 4096), ("64K", 65_536), ("512MiB", 512 << 20)] {
            assert_eq!(parse_space(text), Ok(bytes));
        }
        assert_eq!(parse_space("1.5g"), Ok(3 << 29));
        for text in ["", "G", "-1M", "0", "12X", "nan", "99999999T"] {
            assert!(parse_space(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(parse_time("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_time("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        for text in ["3", "s", "-1s", "3m", "nans"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
