//! Limits, groups and weights, as the command line and the configuration name them.

use serde::{Deserialize, Deserializer};

pub use flowstone_qos::{DiskLimits, Limit, Weight};

/// Disks that share a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// What disks call it.
    pub name: String,
    /// What they may use together.
    pub limit: Limit,
}

/// A `[[group]]`, as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTable {
    name: String,
    iops: Option<u64>,
    bw: Option<String>,
    burst: Option<String>,
}

impl GroupTable {
    /// What it means.
    pub fn read(&self) -> Result<GroupConfig, String> {
        let Self { name, iops, bw, burst } = self;
        let iops = iops.map(|iops| iops.to_string());
        let limit = Limit::of_parts(iops.as_deref(), bw.as_deref(), burst.as_deref())?;
        Ok(GroupConfig { name: name.clone(), limit })
    }
}

/// The `weight` of a disk.
pub fn weight<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Weight, D::Error> {
    Weight::new(u32::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}
