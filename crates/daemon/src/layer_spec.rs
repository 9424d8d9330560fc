//! Layers as the command line and the configuration name them.

use std::path::PathBuf;
use std::str::FromStr;

use flowstone_layers::{DelayRange, ErrorRule};

pub use flowstone_layers::DetectZeroes;

/// A diagnosis layer and its parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerSpec {
    /// `delay=2ms`, `delay=0-5ms`
    Delay(DelayRange),
    /// `error=OP[:ERRNO[:EVERY]]`
    Error(ErrorRule),
    /// `log=PATH`
    Log(PathBuf),
    /// `stats`
    Stats,
    /// `verify`
    Verify,
}

impl FromStr for LayerSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "verify" => Ok(Self::Verify),
            None if text == "stats" => Ok(Self::Stats),
            Some(("delay", range)) => Ok(Self::Delay(range.parse()?)),
            Some(("error", rule)) => Ok(Self::Error(rule.parse()?)),
            Some(("log", path)) if !path.is_empty() => Ok(Self::Log(path.into())),
            _ => Err(format!(
                "`{text}` is not a layer; use delay=TIME, error=OP[:ERRNO[:EVERY]], log=PATH, \
                 stats or verify"
            )),
        }
    }
}
