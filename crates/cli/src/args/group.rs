//! Arguments for the groups of a running daemon.

use clap::{Args as ClapArgs, Subcommand};
use flowstone_qos::{GroupLimitArgs, Limit};

use super::{Daemon, Query};

/// Arguments of `group`.
#[derive(Debug, ClapArgs)]
pub struct Group {
    /// The subcommand.
    #[command(subcommand)]
    pub command: GroupCommand,
}

/// The subcommands of `group`.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Add a group, which disks can then name
    Add(AddGroup),
    /// List all groups, with their disks
    List(Query),
    /// Remove a group without disks
    Remove(RemoveGroup),
    /// Change the limit that the disks of a group share
    Set(SetGroup),
}

/// Arguments of `group set`.
#[derive(Debug, ClapArgs)]
pub struct SetGroup {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// New limit that its disks share: iops=N and bw=SIZE per second, burst=TIME, separated by
    /// commas, or off
    #[arg(long, value_name = "PARTS")]
    pub limit: Limit,
    /// The group's name
    pub group: String,
}

/// Arguments of `group add`.
#[derive(Debug, ClapArgs)]
pub struct AddGroup {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Limit that its disks share.
    #[command(flatten)]
    pub together: GroupLimitArgs,
    /// The group's name
    pub group: String,
}

/// Arguments of `group remove`.
#[derive(Debug, ClapArgs)]
pub struct RemoveGroup {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// The group's name
    pub group: String,
}
