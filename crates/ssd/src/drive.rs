//! A drive: its geometry, its counters, and the places of files on it.

use std::sync::Arc;
use std::time::Duration;

use crate::contents::BLOCK_BYTES;
use crate::file::SsdFile;
use crate::ftl::{Counts, Ftl, LABELS, Shape, since};
use crate::options::{OP_PERCENT_MAX, SsdOptions};
use crate::place::Place;
use crate::shared::Shared;
use crate::state::{Labeller, State};
use crate::time::ModelTime;
use crate::timing::Work;

/// Memory per block for its content, and per end of a unit's mapping.
const CONTENT_BYTES: u64 = 16;
const PLACE_BYTES: u64 = 4;
const LABEL_BYTES: u64 = 1;
const TOO_LARGE: &str = "the drive has more than 4 billion mapping units";

/// Work received by a drive, and its cost.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Bytes written to files.
    pub host_bytes: u64,
    /// The same by [label](Ssd::set_labeller).
    host_bytes_of: [u64; LABELS],
    /// Ranges punched from files.
    pub punches: u64,
    /// Activity of the flash, in mapping units.
    flash: Counts,
    work: Work,
}

impl Tally {
    /// Returns the flash activity since `before`.
    #[must_use]
    pub fn flash_since(&self, before: &Self) -> Counts {
        self.flash.since(&before.flash)
    }

    /// Returns the bytes written to files since `before`, by [label](Ssd::set_labeller).
    #[must_use]
    pub fn host_bytes_since(&self, before: &Self) -> [u64; LABELS] {
        since(&self.host_bytes_of, &before.host_bytes_of)
    }

    /// Returns the time for which the drive was busy since `before`.
    #[must_use]
    pub fn busy_since(&self, before: &Self) -> Duration {
        self.work.since(&before.work)
    }
}

/// A modelled drive. Clones are the same drive.
#[derive(Clone)]
pub struct Ssd {
    shared: Arc<Shared>,
}

impl Ssd {
    /// Returns why there can be no drive of `bytes` bytes, if so; see [`new`](Self::new).
    pub fn check(bytes: u64, options: &SsdOptions) -> Result<(), String> {
        Self::shape(bytes, options).map(drop)
    }

    fn shape(bytes: u64, options: &SsdOptions) -> Result<Shape, String> {
        let &SsdOptions { unit_bytes, block_bytes, over_provisioning, .. } = options;
        let units = bytes / unit_bytes;
        let units_per_block = block_bytes / unit_bytes;
        let flash = (units as f64 * (1.0 + over_provisioning)) as u64;
        let blocks = flash / units_per_block;
        let places = u32::try_from(blocks * units_per_block).map_err(|_| TOO_LARGE)?;
        let shape = Shape {
            units: units as u32,
            units_per_block: units_per_block as u32,
            blocks: blocks as u32,
            streams: 1 + options.streams,
            dies: options.timing.dies,
        };
        let held = u64::from(shape.held_blocks()) * units_per_block;
        if units + held > u64::from(places) {
            let least = (held as f64 + units_per_block as f64) / units as f64 * 100.0;
            let more = match least <= OP_PERCENT_MAX {
                true => format!("at least op={least:.1}%, "),
                false => String::new(),
            };
            return Err(format!(
                "erase blocks of {} leave no room to clean in: give {more}a smaller block, or a \
                 larger disk",
                flowstone_block::format_size(block_bytes)
            ));
        }
        Ok(shape)
    }

    /// Makes a drive of `bytes` bytes, whole mapping units, as the host sees it.
    ///
    /// # Errors
    /// If it is impossible: it is too large, or its spare flash is less than it needs to work.
    pub fn new(bytes: u64, options: SsdOptions) -> Result<Self, String> {
        let shape = Self::shape(bytes, &options)?;
        let mut ftl = Ftl::new(shape, options.gc);
        if options.is_aged {
            (0..shape.units).for_each(|unit| ftl.write(unit, 0));
            ftl.take_programs().for_each(drop);
        }
        let visible = u64::from(shape.units) * options.unit_bytes;
        let blocks = u32::try_from(visible / BLOCK_BYTES as u64).map_err(|_| TOO_LARGE)?;
        let first = (options.offset_bytes / BLOCK_BYTES as u64) as u32;
        let time = ModelTime::new();
        let state = State::new(options, Arc::clone(&time), ftl, blocks, first);
        Ok(Self { shared: Arc::new(Shared::new(time, state)) })
    }

    /// Returns the least memory of a full model of such a drive, in bytes.
    pub fn memory_bytes(bytes: u64, options: &SsdOptions) -> u64 {
        let units = bytes / options.unit_bytes;
        let places = (units as f64 * (1.0 + options.over_provisioning)) as u64;
        let of_units = units * (PLACE_BYTES + LABEL_BYTES) + places * PLACE_BYTES;
        bytes / BLOCK_BYTES as u64 * CONTENT_BYTES + of_units
    }

    /// Returns the drive's time.
    pub fn time(&self) -> &Arc<ModelTime> {
        &self.shared.time
    }

    /// Has blocks labelled as they are written to files, to count those written, and those copied
    /// by the collector, by label.
    pub fn set_labeller(&self, labeller: Labeller) {
        self.shared.state().labeller = Some(labeller);
    }

    /// Returns the counters.
    pub fn tally(&self) -> Tally {
        let state = self.shared.state();
        Tally {
            host_bytes: state.host_bytes,
            host_bytes_of: state.host_bytes_of,
            punches: state.punches,
            flash: state.ftl.counts(),
            work: state.work.clone(),
        }
    }

    /// Returns the mean and the greatest number of erases of the erase blocks.
    pub fn erases(&self) -> (f64, u32) {
        let state = self.shared.state();
        let (mut sum, mut count, mut most) = (0.0, 0_u32, 0);
        for erases in state.ftl.erases() {
            sum += f64::from(erases);
            count += 1;
            most = most.max(erases);
        }
        (sum / f64::from(count.max(1)), most)
    }

    /// Makes an empty file that may take the next `bytes` bytes of the drive.
    ///
    /// # Errors
    /// If the drive has less space left.
    pub fn file(&self, bytes: u64) -> Result<SsdFile, String> {
        let mut state = self.shared.state();
        let first = state.free_from;
        let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
        let end = u64::from(first) + blocks;
        if end > u64::from(state.blocks) {
            return Err(format!("the drive has no {bytes} bytes left"));
        }
        state.free_from = end as u32;
        let shared = Arc::clone(&self.shared);
        Ok(SsdFile::new(shared, Place::new(first, blocks)))
    }
}
