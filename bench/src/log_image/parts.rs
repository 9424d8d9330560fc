//! Blocks appended to a log image, by kind.

use anyhow::{Context, Result};
use serde_json::Value;

/// Blocks appended since the image was made, or between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    guest: f64,
    appended: f64,
    copies: f64,
    maps: f64,
    /// Headers of records, and seals of segments, if they are counted separately.
    headers_and_seals: Option<(f64, f64)>,
}

impl Parts {
    /// Reads them from the part of `stats --json` about a log image.
    pub fn of(log: &Value) -> Result<Self> {
        let number = |key: &str| log[key].as_f64();
        let needed = |key: &str| number(key).with_context(|| format!("`stats` has no log.{key}"));
        Ok(Self {
            guest: needed("guest_blocks")?,
            appended: needed("appended_blocks")?,
            copies: needed("relocated_blocks")?,
            maps: needed("map_blocks")?,
            headers_and_seals: number("header_blocks").zip(number("seal_blocks")),
        })
    }

    /// Returns the blocks appended since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let apart = self.headers_and_seals.zip(earlier.headers_and_seals);
        Self {
            guest: self.guest - earlier.guest,
            appended: self.appended - earlier.appended,
            copies: self.copies - earlier.copies,
            maps: self.maps - earlier.maps,
            headers_and_seals: apart.map(|(now, then)| (now.0 - then.0, now.1 - then.1)),
        }
    }

    /// Returns the blocks appended per block of the guest.
    pub fn amplification(&self) -> f64 {
        self.appended / self.guest
    }

    /// Returns all kinds per block of the guest, by name.
    pub fn figures(&self) -> Vec<(&'static str, f64)> {
        let each = |blocks: f64| blocks / self.guest;
        let mut figures = vec![
            ("amplification", self.amplification()),
            ("copies", each(self.copies)),
            ("maps", each(self.maps)),
        ];
        match self.headers_and_seals {
            Some((headers, seals)) => {
                figures.extend([("headers", each(headers)), ("seals", each(seals))]);
            }
            None => {
                let rest = self.appended - self.guest - self.copies - self.maps;
                figures.push(("headers and seals", each(rest)));
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn log(guest: u32, appended: u32) -> Value {
        json!({"guest_blocks": guest, "appended_blocks": appended, "relocated_blocks": 30, "map_blocks": 10})
    }

    #[test]
    fn what_is_neither_guest_nor_copy_nor_map_is_headers_and_seals() {
        let parts = Parts::of(&log(100, 150)).unwrap();
        let figures = parts.figures();
        assert_eq!(figures[0], ("amplification", 1.5));
        assert_eq!(figures[3], ("headers and seals", 0.1));
    }

    #[test]
    fn headers_and_seals_that_are_counted_apart_are_shown_apart() {
        let mut counted = log(100, 150);
        (counted["header_blocks"], counted["seal_blocks"]) = (json!(8), json!(2));
        let figures = Parts::of(&counted).unwrap().figures();
        assert_eq!(figures[3..], [("headers", 0.08), ("seals", 0.02)]);
    }

    #[test]
    fn only_what_came_since_counts() {
        let since = Parts::of(&log(300, 450)).unwrap().since(&Parts::of(&log(100, 150)).unwrap());
        assert_eq!(since.amplification(), 1.5);
        assert_eq!(since.figures()[1], ("copies", 0.0));
    }

    #[test]
    fn statistics_without_counts_are_an_error() {
        assert!(Parts::of(&json!({"guest_blocks": 1})).is_err());
    }
}
