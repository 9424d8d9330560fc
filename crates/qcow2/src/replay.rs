//! Replays changes of the map that a killed daemon had not written yet.

use std::collections::{BTreeMap, HashSet};

use flowstone_block::{Errno, SECTOR_BYTES, Sector};
use flowstone_fileio::BlockingFile;
use flowstone_image::Flaw;
use tracing::info;

use super::core::Core;
use super::entry::{self, Mapping};
use super::redo::RedoRecord;
use super::shape::{GuestCluster, HostCluster, Shape};
use super::slow_path::look;
use super::survey::SurveyError;

/// Returns the last change of each guest cluster.
fn last(records: &[RedoRecord]) -> BTreeMap<GuestCluster, u64> {
    records.iter().map(|record| (record.guest, record.entry)).collect()
}

/// Returns the host clusters that the map names after the changes, and maybe not before.
pub fn named(shape: Shape, records: &[RedoRecord]) -> HashSet<HostCluster> {
    last(records).values().filter_map(|raw| host_of(shape, *raw)).collect()
}

fn host_of(shape: Shape, raw: u64) -> Option<HostCluster> {
    match entry::decode(shape, raw) {
        Ok(Mapping::Data { host, .. } | Mapping::Zero { reserved: Some(host) }) => Some(host),
        _ => None,
    }
}

/// Applies the changes of the killed daemon to the map. Changes that have reached the medium
/// already make no difference.
pub fn replay(core: &Core, records: &[RedoRecord]) -> Result<(), SurveyError> {
    if records.is_empty() {
        return Ok(());
    }
    let last = last(records);
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut file = BlockingFile::new(&*core.file).map_err(failed)?;
    let shape = core.shape;
    let disk_clusters = shape.l2_entries() * core.meta().map.l1().len() as u64;
    for (guest, raw) in &last {
        if guest.0 >= disk_clusters || !core.meta().is_sound(&[*raw]) {
            let why = format!("the redo file says what cannot be of cluster {}", guest.0);
            let lba = Sector::new(shape.position(*guest) / SECTOR_BYTES);
            return Err(SurveyError::Damaged(Flaw::new(why).of(lba)));
        }
        let (mut meta, before) = look(core, &mut file, |meta| meta.map.get(*guest))?;
        if before != *raw {
            meta.taken.extend(host_of(shape, *raw));
            meta.change(*guest, *raw);
        }
    }
    info!("{}: {} changes of the map taken over from a killed daemon", core.name, last.len());
    Ok(())
}
