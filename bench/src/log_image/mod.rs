//! `flowstone-bench log`: log images compared with raw ones.
//!
//! Without a subcommand it measures the points of `point`, round by round, contenders in turn, and
//! reports for each whether its target is met. `steady` overwrites full disks for long and reports
//! the cost of cleaning, `live` the same beside a raw image, `growth` measures what grows with the
//! size of the disk, `cleaning` what segments in use add to the cost of cleaning, `map` measures
//! the map alone.

pub mod cleaning;
pub mod compare;
pub mod growth;
pub mod live;
pub mod map;
mod parts;
mod point;
mod settle;
mod share;
pub mod steady;

use anyhow::Result;
use clap::{Args, Subcommand};

/// The measurement.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct LogArgs {
    /// Subcommand, instead of the points.
    #[command(subcommand)]
    command: Option<Other>,
    #[command(flatten)]
    compare: compare::CompareArgs,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// Writes to full disks until cleaning is steady: write amplification, rate, latency. On a
    /// tmpfs the amplification is valid for any disk, the latency is not.
    Steady(steady::SteadyArgs),
    /// Memory of the map, time until the disk is served after a stop and after a kill, and the
    /// largest checkpoint, over the size of the disk.
    Growth(growth::GrowthArgs),
    /// Time of cleaning with 44,000 segments in use beside that with 2,700. Takes 320 GiB on a
    /// medium that compresses zeroes.
    Cleaning(cleaning::CleaningArgs),
    /// Lookup and insert of 10 million random blocks, beside a BTreeMap.
    Map(map::MapArgs),
}

/// Carries out the subcommand.
pub fn log(args: &LogArgs) -> Result<()> {
    match &args.command {
        Some(Other::Map(args)) => map::measure(args),
        Some(Other::Growth(args)) => growth::measure(args),
        Some(Other::Cleaning(args)) => cleaning::measure(args),
        Some(Other::Steady(args)) => match args.live {
            Some(share) => live::measure(args, share),
            None => steady::measure(args),
        },
        None => compare::compare(&args.compare),
    }
}
