//! Parsing and formatting of sizes and times.

use std::time::Duration;

/// Suffixes of the powers of 1024.
const LETTERS: &str = "KMGT";

/// Parses a size: `4096`, `64K`, `512MiB`, `1.5G`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write e.g. 512M or 2G");
    let bare = text.trim().trim_end_matches("iB").trim_end_matches('B');
    let letter = bare.chars().last().map(|it| it.to_ascii_uppercase());
    let power = letter.and_then(|it| LETTERS.find(it)).map_or(0, |at| at + 1);
    let digits = if power > 0 { &bare[..bare.len() - 1] } else { bare };
    let number: f64 = digits.trim().parse().map_err(|_| wrong())?;
    let bytes = number * 1024_f64.powi(i32::try_from(power).map_err(|_| wrong())?);
    if bytes.is_finite() && (1.0..2_f64.powi(63)).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(wrong())
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

/// Formats a size with the largest suffix that leaves a whole part.
pub fn format_size(bytes: u64) -> String {
    let powers = (1..).zip(LETTERS.chars());
    let fitting = powers.take_while(|(power, _)| bytes >> (10 * power) > 0).last();
    match fitting {
        Some((power, letter)) => {
            format!("{:.1} {letter}iB", bytes as f64 / 1024_f64.powi(power))
        }
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        for (text, bytes) in [("4096", 4096), ("64K", 65_536), ("512MiB", 512 << 20)] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        assert_eq!(parse_size("1.5g"), Ok(3 << 29));
        for text in ["", "G", "-1M", "0", "12X", "nan", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
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

    #[test]
    fn sizes_are_shown() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1023), "1023 B");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
    }
}
