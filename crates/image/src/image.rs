//! What every image format can do besides serving requests.

use std::io;

use clap::ValueEnum;
use flowstone_block::{Extent, Layer, Result, Sector, SectorCount};
use flowstone_fileio::FileIo;
use serde::Serialize;

use crate::damage::{DamageWatcher, Damages};
use crate::format::Format;

/// What becomes of the space behind a discarded range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DiscardMode {
    /// The host gets the space back
    #[default]
    Deallocate,
    /// A raw file stays allocated, and reads as zeroes there; a device that is an image by itself
    /// gets the discard
    Keep,
    /// Guests are not offered discards at all
    Ignore,
}

/// When a log image gives back segments in which nothing lives, besides when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Tell {
    /// At once on a device that takes discards; in a file they are written again as they are,
    /// which costs the host less
    #[default]
    Auto,
    /// At once, in a file, too: on a file system that is mounted with `discard` the drive hears of
    /// it
    Always,
}

/// How much room an image takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Size of the virtual disk in bytes.
    pub virtual_bytes: u64,
    /// Bytes of the disk that hold data, where the image knows. A raw image has no map: what the
    /// host has given it is taken for data.
    pub live_bytes: Option<u64>,
    /// Bytes that the host has given to the image.
    pub allocated_bytes: u64,
    /// Bytes of the image that hold nothing of use any more, where its format leaves such behind:
    /// they go back to the host later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_bytes: Option<u64>,
}

/// How the data of an image lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes that the host has given to the image.
    pub allocated_bytes: u64,
    /// Who reads the data in the order of the disk reads so many pieces of the file.
    pub data_runs: u64,
    /// Extents in which the host keeps the file, where its file system tells.
    pub host_extents: Option<u64>,
    /// Whether reads bypass the host's page cache.
    pub direct: bool,
}

impl Layout {
    /// What a file tells, without any data.
    pub(crate) fn of(file: &dyn FileIo) -> io::Result<Self> {
        Ok(Self {
            allocated_bytes: file.allocated_bytes()?,
            data_runs: 0,
            host_extents: file.extents(),
            direct: file.is_direct(),
        })
    }
}

/// How far `compact` has come: so much of so much.
pub type CompactProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// What became of discards, and of write-zeroes that may give space back, since an image was
/// opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Discards {
    /// Ranges that came in.
    pub ranges: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// Runs of neighbours that the host was to have back.
    pub merged: u64,
    /// Ranges that came in and are not done.
    pub waiting: u64,
    /// Calls that gave space back; none is made for what is a hole already.
    pub punches: u64,
    /// Bytes of their ranges.
    pub punched_bytes: u64,
    /// Bytes that the host has back by them.
    #[serde(skip)]
    pub reclaimed_bytes: u64,
}

/// What a log costs besides the blocks that guests write, since the image was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LogCosts {
    /// Headers of records of all kinds.
    pub header_blocks: u64,
    /// Seals at the ends of segments.
    pub seal_blocks: u64,
    /// Segments whose live blocks cleaning has copied.
    pub cleaned_segments: u64,
    /// Blocks that it has copied, without headers.
    pub copied_blocks: u64,
    /// How long it took, without the time that it let guests go first.
    pub cleaning_seconds: f64,
}

/// A log image while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LogState {
    /// Bytes of the disk that are mapped.
    pub live_bytes: u64,
    /// Memory that the map takes.
    pub map_memory_bytes: u64,
    /// Segments that the image may use, that hold something, that are ready to be written, and that
    /// wait for a checkpoint to be freed.
    pub segments_limit: u32,
    /// See above.
    pub segments_used: u32,
    /// See above.
    pub segments_ready: u32,
    /// See above.
    pub segments_dead: u32,
    /// Blocks that guests have written since the image was made.
    pub guest_blocks: u64,
    /// Blocks written to the file since the image was made: data, headers, copies and maps.
    pub appended_blocks: u64,
    /// Of these, copies that cleaning made, with their headers.
    pub relocated_blocks: u64,
    /// Of these, leaves and roots of the map, with their headers.
    pub map_blocks: u64,
    /// Their quotient.
    pub write_amplification: f64,
    /// What the log has cost besides the blocks of guests.
    #[serde(flatten)]
    pub costs: LogCosts,
    /// Number of the newest checkpoint.
    pub checkpoint: u64,
    /// Blocks appended since.
    pub since_checkpoint_blocks: u64,
    /// Bytes of segments in which nothing lives and which the host still has as they were.
    pub untold_dead_bytes: u64,
    /// Whether such segments are given back at once, so that the drive knows.
    pub telling: bool,
    /// Bytes of copies that cleaning writes in a row; 0 while it has no memory for them: it has
    /// none to make.
    pub run_bytes: u64,
    /// Bytes that the re-sorting pass has written since the image was opened.
    pub resorted_bytes: u64,
    /// How often it has gone through the whole disk.
    pub resort_passes: u64,
    /// Whether writes are refused for lack of room.
    pub full: bool,
}

/// An open disk image.
pub trait Image: Layer {
    /// Its format.
    fn format(&self) -> Format;

    /// How much room it takes now.
    fn space(&self) -> io::Result<Space>;

    /// The first range at or after `from` that may hold something other than zeroes.
    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>>;

    /// What became of discards.
    fn discards(&self) -> Discards;

    /// Changes the size of the disk, live. Shrinking is refused where there is data.
    fn resize(&self, capacity: SectorCount) -> Result<()>;

    /// How its data lies in the file.
    fn layout(&self) -> io::Result<Layout>;

    /// Gives the host back what holds no data, and puts the rest in order where its place can be
    /// chosen. The image must not be in use.
    fn compact(&self, progress: CompactProgress<'_>) -> Result<()>;

    /// Damage that was met since it was opened; a raw image cannot know.
    fn damages(&self) -> Damages {
        Damages::default()
    }

    /// `watcher` hears of each place that is damaged when it is met, on the thread that meets it:
    /// it must not wait. The first one stays.
    fn watch_damages(&self, _watcher: DamageWatcher) {}

    /// What only a log image can tell.
    fn log_state(&self) -> Option<LogState> {
        None
    }

    /// Its host file.
    fn file(&self) -> &dyn FileIo;

    /// One line on how the image is being served: engine, caching.
    fn serving(&self) -> String;
}
