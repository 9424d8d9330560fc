//! Limits and weights, as they are asked for.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use clap::Args;

use crate::{Limit, Weight};

/// Limit and weight of a disk; can be changed while it is served.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ShareArgs {
    /// Limit of the disk: iops=N requests and bw=SIZE bytes per second, and burst=TIME, the time
    /// for which unused rate is saved; separated by commas, or off for no limit
    #[arg(long, value_name = "PARTS")]
    pub limit: Option<Limit>,
    /// Weight of the disk relative to other disks, for its share of a device and of its group's
    /// limit: 1 to 10000; a disk without a weight has 100
    #[arg(long, value_name = "N")]
    pub weight: Option<Weight>,
}

/// Disks that share a limit.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct GroupArgs {
    /// Name, by which disks refer to the group
    #[arg(long)]
    pub name: String,
    /// Limit that they share.
    #[command(flatten)]
    pub together: GroupLimitArgs,
}

/// Limit of a group of disks, as a whole or in its parts.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct GroupLimitArgs {
    /// Limit that its disks share: iops=N and bw=SIZE per second, burst=TIME, separated by commas,
    /// or off
    #[arg(long, value_name = "PARTS", conflicts_with_all = ["iops", "bw", "burst"])]
    limit: Option<Limit>,
    /// Total requests per second of the group's disks
    #[arg(long, value_name = "N")]
    iops: Option<u64>,
    /// Total bytes per second of the group's disks
    #[arg(long, value_name = "SIZE")]
    bw: Option<String>,
    /// Time for which unused rate is saved, e.g. 2s or 500ms [default: 10ms]
    #[arg(long, value_name = "TIME")]
    burst: Option<String>,
}

impl GroupLimitArgs {
    /// Returns the limit.
    pub fn limit(&self) -> Result<Limit, String> {
        if let Some(limit) = self.limit {
            return Ok(limit);
        }
        let iops = self.iops.map(|iops| iops.to_string());
        Limit::of_parts(iops.as_deref(), self.bw.as_deref(), self.burst.as_deref())
    }
}
