//! Limits and weights, as they are asked for.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use clap::Args;

use crate::{Limit, Weight};

/// What a disk may use beside others; can be changed while it is served.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct ShareArgs {
    /// What the disk may use in a second: iops=N requests and bw=SIZE bytes, and with burst=TIME as
    /// much of what it has not used as comes in that time; separated by commas, or off for no limit
    #[arg(long, value_name = "PARTS")]
    pub limit: Option<Limit>,
    /// How much the disk gets, beside others, of a device and of its group's limit: 1 to 10000, 100
    /// for one that nothing is said of
    #[arg(long, value_name = "N")]
    pub weight: Option<Weight>,
}

/// Disks that share a limit.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct GroupArgs {
    /// What disks call it
    #[arg(long)]
    pub name: String,
    /// What they share.
    #[command(flatten)]
    pub together: GroupLimitArgs,
}

/// What the disks of a group may use together, as a whole or in its parts.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct GroupLimitArgs {
    /// What its disks may use together in a second: iops=N, bw=SIZE, burst=TIME, separated by
    /// commas, or off
    #[arg(long, value_name = "PARTS", conflicts_with_all = ["iops", "bw", "burst"])]
    limit: Option<Limit>,
    /// Requests that its disks may use together in a second
    #[arg(long, value_name = "N")]
    iops: Option<u64>,
    /// Bytes that its disks may use together in a second
    #[arg(long, value_name = "SIZE")]
    bw: Option<String>,
    /// So much of what its disks have not used they may use later, as 2s or 500ms [default: 10ms]
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
