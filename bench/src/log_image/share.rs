//! The share of live blocks in a log image, and the expected cost of cleaning.
//!
//! An image has more segments than disk and reserve need, for headers, and where the reserve is
//! small for checkpoints: for small disks many more. So the share of live blocks is read from the
//! image, and never computed from the option that it was made with.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use flowstone_experiment::command::{json, number};

use crate::place::Place;

/// Range of `create --reserve`, in percent.
const RESERVES: std::ops::RangeInclusive<u32> = 3..=74;

/// Parses a share of live blocks of `log steady --live`.
pub fn parse(text: &str) -> Result<f64, String> {
    let shares = [("0.7", 0.7), ("0.8", 0.8), ("0.9", 0.9)];
    let found = shares.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, share)| share).ok_or_else(|| "it is 0.7, 0.8 or 0.9".to_owned())
}

/// Returns the live blocks of a full disk of `bytes` bytes as a share of its image, which must not
/// be served.
pub fn live_share(place: &Place, image: &Path, bytes: u64) -> Result<f64> {
    let info = json(Command::new(place.program()?).args(["info", "--json"]).arg(image))?;
    let log = &info["log"];
    Ok(bytes as f64 / (number(log, "segments_limit")? * number(log, "segment_bytes")?))
}

/// Returns the reserve with which an image comes closest to a share of live blocks.
pub fn reserve_for(
    place: &Place,
    image: &Path,
    bytes: u64,
    more: &[String],
    share: f64,
) -> Result<u32> {
    let mut best = (f64::MAX, *RESERVES.start());
    for reserve in RESERVES {
        let options = [more, &["--reserve".to_owned(), reserve.to_string()]].concat();
        place.create_log(image, bytes, &options)?;
        let distance = (live_share(place, image, bytes)? - share).abs();
        if distance < best.0 {
            best = (distance, reserve);
        }
    }
    Ok(best.1)
}

/// Returns the write amplification of greedy cleaning under uniform writes, without headers and
/// maps: 1 / (1 - v), where v is the share of live blocks in a cleaned segment, and (v - 1) / ln v
/// that in the whole image.
pub fn greedy(share: f64) -> f64 {
    let (mut low, mut high) = (1e-9_f64, 1.0 - 1e-9_f64);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if (middle - 1.0) / middle.ln() < share { low = middle } else { high = middle }
    }
    1.0 / (1.0 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_those_of_the_contract() {
        assert_eq!(["0.7", "0.8", "0.9"].map(parse), [Ok(0.7), Ok(0.8), Ok(0.9)]);
        assert!(parse("0.75").is_err());
    }

    #[test]
    fn the_model_is_the_known_one() {
        for (share, known) in [(0.5, 1.25), (0.7, 1.86), (0.8, 2.66), (0.9, 5.05)] {
            let model = greedy(share);
            assert!((model / known - 1.0).abs() < 0.03, "{share}: {model:.3}, known {known}");
        }
    }

    #[test]
    fn more_live_blocks_cost_more() {
        let costs: Vec<f64> =
            (1..20).map(|twentieth| greedy(f64::from(twentieth) / 20.0)).collect();
        assert!(costs.windows(2).all(|pair| pair[0] < pair[1]), "{costs:?}");
    }
}
