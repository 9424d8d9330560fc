//! Opens a log image: loads it, and begins a session for writing.

use std::io;
use std::sync::Arc;

use flowstone_block::{Errno, Error, Outcome, Result, SectorCount, mutated};
use flowstone_fileio::FileIo;
use flowstone_image::Progress;
use flowstone_log_format::{Shape, Superblock, blocks_of_sectors};
use flowstone_log_store::SegmentStore;
use tracing::info;

use super::load::{LeafPlaces, Loaded, load};
use super::log::append::AppendState;
use super::log::reserve::SLACK_SEGMENTS;
use super::log::{Accounting, Log};
use super::maintenance::Maintenance;
use super::refusal::LoadError;
use super::streams::Streams;
use super::volume::Volume;

/// Loads an image. Nothing is written before the returned session [begins](Unbegun::begin); there
/// is none for reading.
pub fn load_for(
    name: String,
    file: Box<dyn FileIo>,
    readonly: bool,
    streams: Option<Streams>,
    progress: Option<&Progress>,
) -> Result<(Arc<Log>, Arc<Volume>, Option<Unbegun>)> {
    let mut loaded = load(&*file, progress).map_err(|error| error.explain(&name))?;
    if let Some(flaw) = loaded.replay.damage.take() {
        return Err(LoadError::Damaged(flaw).explain(&name));
    }
    if let Some(streams) = streams {
        let blocks = blocks_of_sectors(loaded.superblock.capacity_sectors);
        loaded.shape = streams.change(&name, loaded.shape, blocks, readonly)?;
    }
    of_loaded(name, file, loaded, readonly)
}

/// Makes the log of an image that has been loaded, and whose log ends where replay says. Its shape
/// gives the streams it is to have.
pub fn of_loaded(
    name: String,
    file: Box<dyn FileIo>,
    loaded: Loaded,
    readonly: bool,
) -> Result<(Arc<Log>, Arc<Volume>, Option<Unbegun>)> {
    let features = loaded.superblock.readonly_features();
    if features != 0 && !readonly {
        let why = format!("it uses features {features:#x} that this version can only read");
        return Err(Error::unsupported(name, why, "open it read-only, or use a newer version"));
    }
    let Loaded { mut superblock, shape, codec, map, segments, leaves, replay } = loaded;
    // Whatever replay has found: whole records may follow the first torn one, and no new record may
    // lead to them.
    let is_empty = superblock.clean || replay.records == 0;
    let is_clean = superblock.clean;
    let is_clean =
        mutated("log.open.goes-on-at-a-head-where-nothing-was-replayed", is_clean, is_empty);
    let is_changed = shape.streams != superblock.streams;
    let starts_anew = is_changed || !is_clean;
    let mut state = AppendState::new(shape, segments, replay.next_sequence);
    let clock = superblock.clock + replay.guest_blocks;
    let accounting = Accounting::resumed(superblock.totals, clock, replay.blocks);
    state.resume(accounting, superblock.generation, replay.heads, starts_anew && !readonly);
    if replay.records > 0 {
        info!("{name}: {} records replayed after the last checkpoint", replay.records);
    }
    let capacity = SectorCount::new(superblock.capacity_sectors);
    let volume = Volume::new(capacity, map);
    // The superblock of this session records the limit before one of the added segments is used.
    let most = shape.segments_most(volume.blocks());
    let stored = state.segments().limit();
    let own = shape.segments_for(volume.blocks()).unwrap_or(stored).min(most);
    while !state.segments_mut().move_limit(stored.min(own + kept_beyond(own)).max(own)) {}
    // One stream more takes new heads before anything is cleaned.
    let slack = if is_changed { SLACK_SEGMENTS } else { 0 };
    let wanted = state.kept_from_writes(&volume) + slack;
    while !state.segments_mut().raise_limit_for(wanted, most) {}
    state.find_trim_heads(&volume);
    superblock.segments = superblock.segments.max(state.segments().limit());
    let log = Arc::new(Log::new(name, SegmentStore::new(file, shape), codec, state));
    let volume = Arc::new(volume);
    let (of_log, of_volume) = (Arc::clone(&log), Arc::clone(&volume));
    let session =
        Unbegun { log: of_log, volume: of_volume, superblock, leaves, is_changed, starts_anew };
    Ok((log, volume, (!readonly).then_some(session)))
}

/// Returns the segments beyond its own limit that an image keeps: as many as the spare segments and
/// two maps that came on top of the reserve until 30 Nov 2026.
const fn kept_beyond(own: u32) -> u32 {
    14 + own / 100
}

/// A session for writing that has written nothing yet.
pub struct Unbegun {
    pub log: Arc<Log>,
    volume: Arc<Volume>,
    superblock: Superblock,
    leaves: LeafPlaces,
    /// Its streams change.
    is_changed: bool,
    /// It starts new heads: after a crash, and for a change of streams.
    starts_anew: bool,
}

impl Unbegun {
    /// Begins the session: marks the image as in use, and makes a checkpoint with new heads if it
    /// needs them. The worker belongs to the calling thread.
    pub fn begin(self) -> Result<Maintenance> {
        let Self { log, volume, superblock, leaves, is_changed, starts_anew } = self;
        let host =
            |error: io::Error| Error::host(&*log.name, error, "check the host's file system");
        let failed = |errno: Errno| match is_changed {
            true => no_other_streams(&log.name, log.shape, errno),
            false => host(errno.into()),
        };
        let mut maintenance =
            Maintenance::new(Arc::clone(&log), volume, superblock, leaves).map_err(host)?;
        let needs_room = mutated("log.streams.begins-without-room", is_changed, false);
        if needs_room {
            // Before the image is marked as in use.
            maintenance.writer.space.get_ahead(segments_to_change(log.shape)).map_err(failed)?;
        }
        maintenance.begin_session().map_err(failed)?;
        if starts_anew {
            match restart(&mut maintenance) {
                Ok(()) => maintenance.writer.space.punch_free(),
                Err(errno) if is_changed => return Err(failed(errno)),
                Err(errno) => maintenance.restart.put_off(errno).map_err(failed)?,
            }
        }
        Ok(maintenance)
    }
}

/// Segments needed to change streams: a head for each, and the map.
const fn segments_to_change(shape: Shape) -> u32 {
    shape.streams + 1
}

/// Error for a change of streams: the image is unchanged, since no durable structure names other
/// streams before they have heads.
fn no_other_streams(name: &str, shape: Shape, errno: Errno) -> Error {
    let streams = Streams::of(shape.streams);
    let bytes = u64::from(segments_to_change(shape)) * shape.segment_bytes();
    let advice =
        format!("free {bytes} bytes on the host for --streams {}, or leave it out", streams.name());
    Error::host(name, io::Error::from(errno), advice)
}

/// Starts new heads after a crash. On a full host it is unknown which free segments are allocated:
/// all are deallocated, and the host is tried again. Replay has read none of them, and would not
/// after another power cut.
fn restart(maintenance: &mut Maintenance) -> Outcome {
    maintenance.restart.run(&mut maintenance.writer).or_else(|errno| {
        let is_full = mutated("log.open.gives-up-on-a-full-host", errno == Errno::NOSPC, false);
        if !is_full {
            return Err(errno);
        }
        maintenance.writer.space.punch_free();
        maintenance.restart.run(&mut maintenance.writer)
    })
}
