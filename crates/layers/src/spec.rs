//! Command-line options of diagnosis layers.

#![allow(rustdoc::broken_intra_doc_links, reason = "in help, brackets mean optional")]

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use flowstone_block::{Error, Layer, Result};

use crate::{Delay, DelayRange, ErrorRule, Errors, LayerCounters, Log, Stats, Verify};

/// Which of them are there.
#[derive(Clone, Debug, Default, Args)]
pub struct LayerArgs {
    /// Put a diagnosis layer on top: delay=2ms, delay=0-5ms (random, completes out of order),
    /// error=OP[:ERRNO[:EVERY]], log=PATH, stats, verify; repeat for several
    #[arg(long = "layer", alias = "layers", value_name = "LAYER")]
    pub layers: Vec<LayerSpec>,
}

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

impl LayerArgs {
    /// Stacks the layers over `base`, the first named lowest; the counters of stats layers are
    /// added to `counters`.
    pub fn stack(
        &self,
        base: Arc<dyn Layer>,
        counters: &mut Vec<Arc<LayerCounters>>,
    ) -> Result<Arc<dyn Layer>> {
        let mut top = base;
        for spec in &self.layers {
            top = match spec {
                LayerSpec::Delay(range) => Arc::new(Delay::new(top, *range)),
                LayerSpec::Error(rule) => Arc::new(Errors::new(top, *rule)),
                LayerSpec::Verify => Arc::new(Verify::new(top)),
                LayerSpec::Log(path) => Arc::new(Log::new(top, path).map_err(|error| {
                    let what = format!("layer log={}", path.display());
                    Error::host(what, error, "choose a path that you may write")
                })?),
                LayerSpec::Stats => {
                    let stats = Stats::new(top);
                    counters.push(stats.counters());
                    Arc::new(stats)
                }
            };
        }
        Ok(top)
    }
}

impl FromStr for LayerSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
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
