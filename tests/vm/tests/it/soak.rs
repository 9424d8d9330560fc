//! Common parts of long random runs.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Returns when to stop: `SOAK_MINUTES` from now.
pub fn soak_deadline() -> Result<Instant> {
    let minutes: u64 = std::env::var("SOAK_MINUTES").map_or(Ok(10), |text| text.parse())?;
    Ok(Instant::now() + Duration::from_secs(60 * minutes))
}

/// Returns a random generator; `SOAK_SEED` repeats an earlier run's decisions, but not its timing.
pub fn seeded() -> fastrand::Rng {
    let given = std::env::var("SOAK_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SOAK_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
