//! Blocks appended to a log image, by kind.

use anyhow::Result;
use flowstone_experiment::Figures;
use flowstone_experiment::command::number;
use serde_json::Value;

/// The kinds, and their counts in `stats --json`.
const KINDS: [(&str, &str); 5] = [
    ("amplification", "appended_blocks"),
    ("copies", "relocated_blocks"),
    ("maps", "map_blocks"),
    ("headers", "header_blocks"),
    ("seals", "seal_blocks"),
];

/// Blocks written by the guest and appended since the image was made.
#[derive(Clone, Debug)]
pub struct Parts {
    guest: f64,
    /// By kind.
    appended: Vec<f64>,
}

impl Parts {
    /// Reads them from the part of `stats --json` about a log image.
    pub fn of(log: &Value) -> Result<Self> {
        let appended = KINDS.iter().map(|(_, count)| number(log, count));
        Ok(Self { guest: number(log, "guest_blocks")?, appended: appended.collect::<Result<_>>()? })
    }

    /// Returns all kinds per block of the guest since an earlier reading, by name.
    pub fn figures_since(&self, earlier: &Self) -> Figures {
        let guest = self.guest - earlier.guest;
        let counts = self.appended.iter().zip(&earlier.appended);
        let each = counts.map(|(now, earlier)| (now - earlier) / guest);
        KINDS.iter().zip(each).map(|((name, _), each)| (*name, each)).collect()
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
        let new = json!({
            "guest_blocks": 0, "appended_blocks": 0, "relocated_blocks": 0, "map_blocks": 0,
            "header_blocks": 0, "seal_blocks": 0,
        });
        let new = Parts::of(&new).unwrap();
        let figures = Parts::of(&log(100, 150)).unwrap().figures_since(&new);
        assert_eq!(figures[..2], [("amplification", 1.5), ("copies", 0.3)]);
        assert_eq!(figures[3..], [("headers", 0.08), ("seals", 0.02)]);
    }

    #[test]
    fn only_what_came_since_counts() {
        let [now, earlier] = [log(300, 450), log(100, 150)].map(|log| Parts::of(&log).unwrap());
        let figures = now.figures_since(&earlier);
        assert_eq!(figures[..2], [("amplification", 1.5), ("copies", 0.0)]);
    }

    #[test]
    fn statistics_without_counts_are_an_error() {
        assert!(Parts::of(&json!({"guest_blocks": 1})).is_err());
    }
}
