//! What is replayed, and on what.

use std::path::PathBuf;

use flowstone_cache::PolicyKind;
use flowstone_image::{CreateOptions, Format, ImageOptions};
use flowstone_ssd::SsdOptions;
use flowstone_trace::Trace;

use crate::load::Generator;

/// What a guest does.
#[derive(Clone, Debug)]
pub enum Load {
    /// Writes that are drawn, so many of them if that is said.
    Generated(Generator, Option<u64>),
    /// What a trace says.
    Trace(Trace),
}

/// When requests of a trace are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// As soon as there is room.
    Asap,
    /// When the trace says.
    Trace,
}

/// A cache before the image.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// What it takes for data, in bytes.
    pub bytes: u64,
    /// What decides which blocks are kept.
    pub policy: PolicyKind,
    /// Whether journals are held as everything else is.
    pub holds_journals: bool,
}

/// A file or a device in the place of the model.
#[derive(Clone, Debug)]
pub struct Onto {
    /// Where the image is made.
    pub path: PathBuf,
    /// Whether what is there may be lost.
    pub overwrite: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The guest's load.
    pub load: Load,
    /// Bytes of the guest's disk; the default is what a trace says, and at least where it ends.
    pub size: Option<u64>,
    /// Share of the drive that the guest's disk is.
    pub fill: f64,
    /// Format of the image.
    pub format: Format,
    /// How the image is made. The default reserve of a log image on a model is the largest with
    /// which its file fits.
    pub create: CreateOptions,
    /// How it is opened; on a model, what discards do and what is put in order.
    pub image: ImageOptions,
    /// A cache before it.
    pub cache: Option<CacheOptions>,
    /// The drive, if it is a model.
    pub ssd: SsdOptions,
    /// What is there in the place of a model.
    pub onto: Option<Onto>,
    /// Requests on their way at once.
    pub iodepth: usize,
    /// When requests are made.
    pub timing: Timing,
    /// Writes before the measured part.
    pub warmup: Option<u64>,
    /// How often a trace is gone through.
    pub passes: u64,
    /// Decides all that is drawn.
    pub seed: u64,
}

impl ReplayOptions {
    /// A load on an image of this format, on a model, with everything else left to its default.
    pub fn new(load: Load, format: Format) -> Self {
        let file = flowstone_fileio::OpenOptions::new(flowstone_fileio::Access::Write);
        Self {
            load,
            size: None,
            fill: 0.8,
            format,
            create: CreateOptions::default(),
            image: ImageOptions::new(file),
            cache: None,
            ssd: SsdOptions::default(),
            onto: None,
            iodepth: 32,
            timing: Timing::Asap,
            warmup: None,
            passes: 1,
            seed: 1,
        }
    }
}
