//! The image in the output of `stats --json`.

use flowstone_block::{Damage, Sector};
use flowstone_image::{Damages, Discards, Image, Space};
use serde::Serialize;

/// Space used by an image.
#[derive(Serialize)]
pub struct SpaceReport {
    #[serde(flatten)]
    pub space: Space,
    reclaimed_bytes: u64,
}

impl SpaceReport {
    /// Combines the image's space with its discard counters.
    pub fn of(space: Space, image: &dyn Image) -> Self {
        Self { space, reclaimed_bytes: image.discards().reclaimed_bytes }
    }
}

/// Counters of discards.
#[derive(Serialize)]
pub struct DiscardReport {
    requests: u64,
    #[serde(flatten)]
    discards: Discards,
    merge_ratio: f64,
}

impl DiscardReport {
    /// Combines the image's counters, which count ranges, with the queues' count of requests.
    pub fn of(requests: u64, discards: Discards) -> Self {
        let merge_ratio = discards.ranges as f64 / discards.merged.max(1) as f64;
        Self { requests, discards, merge_ratio }
    }
}

/// Damage met by requests or maintenance.
#[derive(Serialize)]
pub struct DamageReport {
    met: u64,
    recent: Vec<DamagedPlace>,
}

#[derive(Serialize)]
struct DamagedPlace {
    what: String,
    /// `null` if the lost sectors are unknown.
    lba: Option<u64>,
    /// `null` if the damage has no place in the file.
    offset: Option<u64>,
}

impl From<Damages> for DamageReport {
    fn from(damages: Damages) -> Self {
        let place = |Damage { what, lba, offset, .. }| DamagedPlace {
            what,
            lba: lba.map(Sector::get),
            offset,
        };
        Self { met: damages.met, recent: damages.recent.into_iter().map(place).collect() }
    }
}
