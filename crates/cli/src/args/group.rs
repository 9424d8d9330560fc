//! What can be changed of groups of disks that are being served.

use clap::{Args as ClapArgs, Subcommand};
use flowstone_qos::Limit;

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
