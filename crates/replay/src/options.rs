//! Options of a replay.

use std::path::PathBuf;

use flowstone_cache::PolicyKind;
use flowstone_formats::{CreateOptions, ImageOptions};
use flowstone_image::Format;
use flowstone_ssd::SsdOptions;
use flowstone_trace::Trace;

use crate::load::Generator;

/// The load of a guest.
#[derive(Clone, Debug)]
pub enum Load {
    /// Random writes, and their number, if given.
    Generated(Generator, Option<u64>),
    /// The requests of a trace.
    Trace(Trace),
}

/// When requests of a trace are submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// As soon as there is room.
    Asap,
    /// At the times of the trace.
    Trace,
}

/// A cache above the image.
#[derive(Clone, Copy, Debug)]
pub struct CacheOptions {
    /// Bytes that it may take for data.
    pub bytes: u64,
    /// Replacement policy.
    pub policy: PolicyKind,
    /// Whether journals are cached.
    pub holds_journals: bool,
}

/// A file or a device used instead of the model.
#[derive(Clone, Debug)]
pub struct Onto {
    /// Path at which the image is made.
    pub path: PathBuf,
    /// Whether existing content may be overwritten.
    pub overwrite: bool,
}

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The guest's load.
    pub load: Load,
    /// Number of guests on one model, each with this load, from the seed and its number, on an
    /// image of its own.
    pub images: usize,
    /// Bytes of the guest's disk; by default the size in the trace, at least its end.
    pub size: Option<u64>,
    /// The guests' disks as a fraction of the drive.
    pub fill: f64,
    /// Format of the image.
    pub format: Format,
    /// Options of the image to create. The default reserve of a log image on a model is the
    /// largest with which its file fits.
    pub create: CreateOptions,
    /// Options of opening it; on a model, only the handling of discards and the re-sorting apply.
    pub image: ImageOptions,
    /// A cache above it.
    pub cache: Option<CacheOptions>,
    /// The drive, if it is a model.
    pub ssd: SsdOptions,
    /// The file or device used instead of a model.
    pub onto: Option<Onto>,
    /// Requests in flight.
    pub iodepth: usize,
    /// When requests are submitted.
    pub timing: Timing,
    /// Writes before the measured part.
    pub warmup: Option<u64>,
    /// Number of passes over a trace.
    pub passes: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Whether a generated load tells apart the blocks that it soon writes again, as metadata: an
    /// image with two streams keeps them apart.
    pub tells_soon: bool,
}

impl ReplayOptions {
    /// Makes the options of a load on an image of this format, on a model, with defaults otherwise.
    pub fn new(load: Load, format: Format) -> Self {
        let file = flowstone_fileio::OpenOptions::new(flowstone_fileio::Access::Write);
        Self {
            load,
            images: 1,
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
            tells_soon: false,
        }
    }

    /// Returns the seed of the guest with this number.
    pub(crate) const fn seed_of(&self, number: usize) -> u64 {
        self.seed.wrapping_add(number as u64)
    }
}
