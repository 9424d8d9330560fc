//! Restores the sequential order of a log image that was overwritten at random.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::place::{Place, stats, stop};

/// The sorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Settle {
    /// `flowstone compact`, while the image is not in use.
    Compact,
    /// A daemon without a guest, with `--resort`.
    Idle,
}

/// More than any image here: all of it may be sorted at once.
const RESORT_PER_DAY: &str = "16T";
const LOOK_EVERY: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(120);

/// Sorts the image. Returns when that is done.
pub fn settle(how: Settle, place: &Place, image: &Path) -> Result<()> {
    match how {
        Settle::Compact => place.compact(image),
        Settle::Idle => idle(place, image),
    }
}

fn idle(place: &Place, image: &Path) -> Result<()> {
    let (socket, control) = (image.with_extension("sock"), image.with_extension("control"));
    let more = ["--resort", RESORT_PER_DAY, "--control", &control.display().to_string()];
    let mut daemon = place.serve(image, &socket, 1, &more)?;
    let end = Instant::now() + PATIENCE;
    while !is_settled(&stats(&place.program()?, &control)?)? {
        if Instant::now() > end {
            bail!("{} has not been put in order within {PATIENCE:?}", image.display());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    stop(&mut daemon)
}

/// Returns whether the daemon has sorted its only disk once since its start.
fn is_settled(stats: &Value) -> Result<bool> {
    let passes = &stats["disks"][0]["log"]["resort_passes"];
    Ok(passes.as_u64().context("`stats` has no log.resort_passes")? > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(passes: u64) -> Value {
        json!({"disks": [{"log": {"resort_passes": passes}}]})
    }

    #[test]
    fn an_image_is_settled_after_a_pass() {
        assert!(is_settled(&with(1)).unwrap());
        assert!(!is_settled(&with(0)).unwrap());
    }

    #[test]
    fn a_daemon_without_an_idle_pass_is_an_error() {
        assert!(is_settled(&json!({"disks": [{"log": {}}]})).is_err());
    }
}
