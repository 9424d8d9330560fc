//! Values of options and keys, as they are spelt.

use std::str::FromStr;

use flowstone_block::parse_size;
use flowstone_fileio::{DirectChoice, EngineChoice};
use flowstone_image::ResortLimit;

/// When a queue looks for work by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// While that is worth it.
    #[default]
    Auto,
    /// All the time: lowest latency, at the price of a core per queue.
    Always,
    /// Never: notifications only.
    Never,
}

/// How many threads a queue runs on (S2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pipeline {
    /// One does everything.
    #[default]
    Fused,
    /// One takes requests, the other one submits and completes them.
    Split,
    /// The one of them that is measured to be faster, while it runs.
    Auto,
}

/// Whether journals are kept out of caches: nothing reads them again but recovery
/// (pollution-defensive caching).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pdc {
    /// They are.
    #[default]
    On,
    /// They are cached like everything else.
    Off,
}

/// What stands in for an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Does nothing, at once.
    Null(u64),
    /// Keeps data in the daemon's memory.
    Mem(u64),
}

impl FromStr for PollMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("`{text}` is not a polling mode; use auto, always or never")),
        }
    }
}

impl FromStr for Pipeline {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fused" => Ok(Self::Fused),
            "split" => Ok(Self::Split),
            "auto" => Ok(Self::Auto),
            _ => Err(format!("`{text}` is not a pipeline; use fused, split or auto")),
        }
    }
}

impl FromStr for Pdc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("`{text}` is not a choice for journals; use on or off")),
        }
    }
}

/// The limit of a log image's idle-time pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resort(pub ResortLimit);

impl Default for Resort {
    fn default() -> Self {
        Self(ResortLimit::Tenth)
    }
}

impl FromStr for Resort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(ResortLimit::Off));
        }
        match parse_size(text) {
            Ok(bytes) if bytes > 0 => Ok(Self(ResortLimit::Bytes(bytes))),
            _ => {
                Err(format!("`{text}` is not an amount for a day; use a size such as 20G, or off"))
            }
        }
    }
}

impl FromStr for Backend {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("null", size)) => Ok(Self::Null(parse_size(size)?)),
            Some(("mem", size)) => Ok(Self::Mem(parse_size(size)?)),
            _ => Err(format!("`{text}` is not a backend; use null:SIZE or mem:SIZE")),
        }
    }
}

/// A choice of the file I/O stage, with the words of the command line, which that stage does not
/// know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice<T>(pub T);

impl FromStr for Choice<EngineChoice> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(EngineChoice::Auto)),
            "uring" => Ok(Self(EngineChoice::Uring)),
            "sync" => Ok(Self(EngineChoice::Sync)),
            _ => Err(format!("`{text}` is not an engine; use auto, uring or sync")),
        }
    }
}

impl FromStr for Choice<DirectChoice> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(DirectChoice::Auto)),
            "on" => Ok(Self(DirectChoice::On)),
            "off" => Ok(Self(DirectChoice::Off)),
            _ => Err(format!("`{text}` is not a choice for direct I/O; use auto, on or off")),
        }
    }
}
