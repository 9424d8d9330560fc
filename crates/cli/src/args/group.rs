//! Arguments for the groups of a running daemon.

use clap::{Args as ClapArgs, Subcommand};
use flowstone_qos::{GroupLimitArgs, Limit};

use super::Daemon;

/// Arguments of `group`.
#[derive(Debug, ClapArgs)]
pub struct Group {
    /// What to do.
    #[command(subcommand)]
    pub command: GroupCommand,
}

/// The subcommands of `group`.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Make one more group, which disks can name from now on
    Add(AddGroup),
    /// List all groups, with their disks
    List(ListGroups),
    /// Take away a group that no disk is in
    Remove(RemoveGroup),
    /// Change what the disks of a group may use together, from now on
    Set(SetGroup),
}

/// Arguments of `group set`.
#[derive(Debug, ClapArgs)]
pub struct SetGroup {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// What its disks may use together in a second, in place of the limit it has: iops=N, bw=SIZE,
    /// burst=TIME, separated by commas, or off
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
    /// What its disks share.
    #[command(flatten)]
    pub together: GroupLimitArgs,
    /// The group's name
    pub group: String,
}

/// Arguments of `group list`.
#[derive(Debug, ClapArgs)]
pub struct ListGroups {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
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
