//! What can be changed of disks and groups that are being served.

use std::path::PathBuf;

use clap::{ArgGroup, Args as ClapArgs, Subcommand};
use flowstone_qos::{Limit, ShareArgs};

/// Arguments of `disk`.
#[derive(Debug, ClapArgs)]
pub struct Disk {
    /// What to do.
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// The subcommands of `disk`.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Change what a disk may use, from now on
    Set(SetDisk),
}

/// Arguments of `disk set`.
#[derive(Debug, ClapArgs)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["limit", "weight"])))]
pub struct SetDisk {
    /// The daemon's control socket
    #[arg(long, value_name = "SOCK")]
    pub control: PathBuf,
    /// What it has from now on in place of what it has.
    #[command(flatten)]
    pub share: ShareArgs,
    /// The disk's name or image
    pub disk: PathBuf,
}

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
    /// The daemon's control socket
    #[arg(long, value_name = "SOCK")]
    pub control: PathBuf,
    /// What its disks may use together in a second, in place of the limit it has: iops=N, bw=SIZE,
    /// burst=TIME, separated by commas, or off
    #[arg(long, value_name = "PARTS")]
    pub limit: Limit,
    /// The group's name
    pub group: String,
}
