//! Arguments of `flowstone serve`: the options of the daemon, and those of one disk or a file of
//! several.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    Arg, ArgAction, ArgGroup, ArgMatches, Args, Command, Error, FromArgMatches, value_parser,
};
use flowstone_block::Printable;
use flowstone_daemon::{DaemonConfig, DiskConfig, keys_of};

/// The configuration to serve.
#[derive(Debug)]
pub enum Serve {
    /// One disk, or none but those added to the daemon before.
    Typed(Box<DaemonConfig>, Option<Box<DiskConfig>>),
    /// The disks of a file, and options that override its keys.
    File(PathBuf, Vec<OsString>),
    /// Check a file without serving it.
    Check(PathBuf, Vec<OsString>),
}

impl Args for Serve {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .help(
                "Serve the disks of this file, or of all *.toml in this folder; flowstone.toml(5) \
                 lists its keys. Options that are not of one disk override the file's",
            );
        let check = Arg::new("check")
            .long("check")
            .requires("config")
            .action(ArgAction::SetTrue)
            .help("Check the configuration and print its errors, without opening any image");
        let command = command.arg(check);
        let what = ArgGroup::new("what").args(["config", "image", "backend"]);
        // With a state directory there may be none of the others.
        let any = ["config", "image", "backend", "state_dir"];
        let any = ArgGroup::new("any").args(any).required(true).multiple(true);
        DaemonConfig::augment_args(DiskConfig::augment_args(command.arg(config)))
            .mut_arg("socket", |socket| {
                socket.required(false).required_unless_present_any(["config", "state_dir"])
            })
            .mut_arg("image", |image| image.requires("socket"))
            .mut_arg("backend", |backend| backend.requires("socket"))
            .group(what)
            .group(any)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Serve {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let refuse = |kind, why: String| {
            Self::augment_args(Command::new("flowstone serve")).error(kind, why)
        };
        let Some(file) = matches.get_one::<PathBuf>("config") else {
            let daemon = DaemonConfig::from_arg_matches(matches)?;
            let kind = ErrorKind::MissingRequiredArgument;
            let check = daemon.check();
            check.map_err(|(why, advice)| refuse(kind, format!("{why}; {advice}")))?;
            let has_disk = matches.contains_id("what");
            let disk = has_disk.then(|| DiskConfig::from_arg_matches(matches)).transpose()?;
            return Ok(Self::Typed(Box::new(daemon), disk.map(Box::new)));
        };
        let of_disk = keys_of::<DiskConfig>();
        let typed_of_disk = of_disk.get_arguments().filter(|option| is_typed(matches, option));
        let names: Vec<String> = typed_of_disk.map(ToString::to_string).collect();
        if !names.is_empty() {
            let (names, file) = (names.join(", "), Printable(file.display()));
            let why = format!("{names}: of one disk; write that in {file}");
            return Err(refuse(ErrorKind::ArgumentConflict, why));
        }
        let (file, typed) = (file.clone(), typed::<DaemonConfig>(matches));
        let is_check = matches.get_flag("check");
        Ok(if is_check { Self::Check(file, typed) } else { Self::File(file, typed) })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn is_typed(matches: &ArgMatches, option: &Arg) -> bool {
    matches.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// The options of `T` that were typed, as they were.
fn typed<T: Args>(matches: &ArgMatches) -> Vec<OsString> {
    let mut words = Vec::new();
    for option in keys_of::<T>().get_arguments().filter(|option| is_typed(matches, option)) {
        for value in matches.get_raw(option.get_id().as_str()).into_iter().flatten() {
            let mut word = OsString::from(format!("--{}=", option.get_long().unwrap_or_default()));
            word.push(value);
            words.push(word);
        }
    }
    words
}
