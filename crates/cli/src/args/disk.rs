//! Arguments for the disks of a running daemon.

use std::path::PathBuf;

use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args as ClapArgs, Command, Error, FromArgMatches,
    Subcommand,
};
use flowstone_block::SizeChange;
use flowstone_daemon::{DiskTable, typed_disk};
use flowstone_qos::ShareArgs;
use toml::Table;

use super::{Daemon, Query};

/// Arguments of `disk`.
#[derive(Debug, ClapArgs)]
pub struct Disk {
    /// The subcommand.
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// The subcommands of `disk`.
#[derive(Debug, Subcommand)]
pub enum DiskCommand {
    /// Serve one more disk; returns when a guest can connect
    Add(AddDisk),
    /// List all disks, in any state
    List(Query),
    /// Show one disk: its state, and its keys as given
    Show(ShowDisk),
    /// Stop serving a disk; returns when its socket is removed and its image is free
    Remove(RemoveDisk),
    /// Change limit, weight or size of a disk while it is served
    Set(SetDisk),
}

/// Arguments of `disk add`.
#[derive(Debug)]
pub struct AddDisk {
    /// The daemon.
    pub daemon: Daemon,
    /// Return at once.
    pub no_wait: bool,
    /// The disk's name.
    pub name: String,
    /// Its keys.
    pub keys: Table,
}

impl ClapArgs for AddDisk {
    fn augment_args(command: Command) -> Command {
        let no_wait = Arg::new("no_wait")
            .long("no-wait")
            .action(ArgAction::SetTrue)
            .help("Return when the disk's name and socket are reserved, before its image is open");
        let command = Daemon::augment_args(command).arg(no_wait);
        DiskTable::augment_args(command)
            .mut_arg("name", |name| {
                name.required(true).help(
                    "Name of the disk in messages, statistics and commands; at most 128 bytes",
                )
            })
            .group(ArgGroup::new("what").args(["image", "backend"]).required(true))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AddDisk {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Ok(Self {
            daemon: Daemon::from_arg_matches(matches)?,
            no_wait: matches.get_flag("no_wait"),
            name: matches.get_one::<String>("name").cloned().unwrap_or_default(),
            keys: typed_disk(matches),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Arguments of `disk show`.
#[derive(Debug, ClapArgs)]
pub struct ShowDisk {
    /// The daemon, and the form of its answer.
    #[command(flatten)]
    pub query: Query,
    /// The disk's name
    pub name: String,
}

/// Arguments of `disk remove`.
#[derive(Debug, ClapArgs)]
pub struct RemoveDisk {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Disconnect its guest, if one is attached; requests in flight are finished first
    #[arg(long)]
    pub force: bool,
    /// The disk's name
    pub name: String,
}

/// Arguments of `disk set`.
#[derive(Debug, ClapArgs)]
#[command(group(
    ArgGroup::new("change").required(true).multiple(true).args(["limit", "weight", "size"])
))]
pub struct SetDisk {
    /// The daemon.
    #[command(flatten)]
    pub daemon: Daemon,
    /// Its new limit and weight.
    #[command(flatten)]
    pub share: ShareArgs,
    /// New size, e.g. 16G, or an increase, e.g. +1G; a disk can only grow
    #[arg(long, value_name = "SIZE", value_parser = SizeChange::parse)]
    pub size: Option<SizeChange>,
    /// The disk's name or image
    pub disk: PathBuf,
}
