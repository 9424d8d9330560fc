//! `flowstone advise`

use std::path::PathBuf;

use clap::Args as ClapArgs;
use flowstone_replay::SsdOptions;

/// Arguments of `advise`.
#[derive(Debug, ClapArgs)]
pub struct Advise {
    /// Trace of a guest's requests, from flowstone record or in any format that flowstone replay
    /// reads
    #[arg(long, value_name = "FILE")]
    pub trace: PathBuf,
    /// Drive, as for flowstone replay
    #[arg(
        long,
        value_name = "NAME=VALUE,...",
        default_value = "op=7%,unit=4K,block=512K,trim=on,gc=greedy,offset=0"
    )]
    pub ssd: SsdOptions,
    /// Size of the disk as a share of the capacity that the host sees of the drive
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub fill: f64,
    /// Rated endurance of the drive in TB (10^12 bytes) written, e.g. 600 or 600TBW, to estimate
    /// its years of life
    #[arg(long, value_name = "TBW", value_parser = parse_endurance)]
    pub endurance: Option<f64>,
    /// Price of the drive, in any currency, to estimate its cost per year, with --endurance
    #[arg(long, value_name = "MONEY", value_parser = parse_price)]
    pub price: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_endurance(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches("TBW").trim_end_matches("TB").trim();
    positive(number).ok_or_else(|| "it is a number of TB, such as 600 or 600TBW".into())
}

fn parse_price(text: &str) -> Result<f64, String> {
    positive(text).ok_or_else(|| "it is a number, such as 120.50".into())
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}
