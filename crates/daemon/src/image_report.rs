//! What `stats --json` says of an image.

use flowstone_block::{Damage, Sector};
use flowstone_image::{Damages, Discards, Image, Space};
use serde::Serialize;

/// How much room an image takes.
#[derive(Serialize)]
pub struct SpaceReport {
    #[serde(flatten)]
    pub space: Space,
    reclaimed_bytes: u64,
}

impl SpaceReport {
    /// Of what the image has told.
    pub fn of(space: Space, image: &dyn Image) -> Self {
        Self { space, reclaimed_bytes: image.discards().reclaimed_bytes }
    }
}

/// What became of discards.
#[derive(Serialize)]
pub struct DiscardReport {
    requests: u64,
    #[serde(flatten)]
    discards: Discards,
    merge_ratio: f64,
}

impl DiscardReport {
    /// The image sees ranges; how many requests brought them, the queues know.
    pub fn of(requests: u64, discards: Discards) -> Self {
        let merge_ratio = discards.ranges as f64 / discards.merged.max(1) as f64;
        Self { requests, discards, merge_ratio }
    }
}

/// Damage that requests or maintenance have met.
#[derive(Serialize)]
pub struct DamageReport {
    met: u64,
    recent: Vec<DamagedPlace>,
}

#[derive(Serialize)]
struct DamagedPlace {
    what: String,
    /// Null if it is not known which sectors of the disk are lost.
    lba: Option<u64>,
    /// Null if it is nowhere in the file.
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
