//! Blocks appended to a log image, by kind.

use anyhow::Result;
use flowstone_experiment::command::number;
use serde_json::Value;

/// Blocks appended since the image was made, or between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parts {
    guest: f64,
    appended: f64,
    copies: f64,
    maps: f64,
    /// Headers of records.
    headers: f64,
    /// Seals of segments.
    seals: f64,
}

impl Parts {
    /// Reads them from the part of `stats --json` about a log image.
    pub fn of(log: &Value) -> Result<Self> {
        Ok(Self {
            guest: number(log, "guest_blocks")?,
            appended: number(log, "appended_blocks")?,
            copies: number(log, "relocated_blocks")?,
            maps: number(log, "map_blocks")?,
            headers: number(log, "header_blocks")?,
            seals: number(log, "seal_blocks")?,
        })
    }

    /// Returns the blocks appended since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            guest: self.guest - earlier.guest,
            appended: self.appended - earlier.appended,
            copies: self.copies - earlier.copies,
            maps: self.maps - earlier.maps,
            headers: self.headers - earlier.headers,
            seals: self.seals - earlier.seals,
        }
    }

    /// Returns all kinds per block of the guest, by name.
    pub fn figures(&self) -> [(&'static str, f64); 5] {
        let each = |blocks: f64| blocks / self.guest;
        [
            ("amplification", each(self.appended)),
            ("copies", each(self.copies)),
            ("maps", each(self.maps)),
            ("headers", each(self.headers)),
            ("seals", each(self.seals)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn log(guest: u32, appended: u32) -> Value {
        json!({
            "guest_blocks": guest, "appended_blocks": appended, "relocated_blocks": 30,
            "map_blocks": 10, "header_blocks": 8, "seal_blocks": 2,
        })
    }

    #[test]
    fn each_kind_is_counted_per_block_of_the_guest() {
        let figures = Parts::of(&log(100, 150)).unwrap().figures();
        assert_eq!(figures[..2], [("amplification", 1.5), ("copies", 0.3)]);
        assert_eq!(figures[3..], [("headers", 0.08), ("seals", 0.02)]);
    }

    #[test]
    fn only_what_came_since_counts() {
        let since = Parts::of(&log(300, 450)).unwrap().since(&Parts::of(&log(100, 150)).unwrap());
        assert_eq!(since.figures()[..2], [("amplification", 1.5), ("copies", 0.0)]);
    }

    #[test]
    fn statistics_without_counts_are_an_error() {
        assert!(Parts::of(&json!({"guest_blocks": 1})).is_err());
    }
}
