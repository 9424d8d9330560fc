//! Reading L2 tables.

use flowstone_block::{AlignedBuf, Errno, Outcome};
use flowstone_fileio::{BlockingFile, FileOffset};

use super::super::core::Core;
use super::super::map::{Missing, from_bytes};
use crate::damage::Flaw;

/// Puts a table into the map. Its entries may still be missing afterwards, if others have used the
/// room meanwhile.
pub fn load(core: &Core, file: &mut BlockingFile, missing: Missing) -> Outcome {
    let evictions = core.meta().map.evictions;
    let mut bytes = AlignedBuf::zeroed(core.shape.cluster_bytes() as usize);
    file.read(FileOffset::new(core.shape.offset(missing.home)), &mut bytes)?;
    let entries = from_bytes(&bytes);
    let mut meta = core.meta();
    if !core.readonly && !meta.is_sound(&entries) {
        drop(meta);
        let flaw = Flaw::new(format!("L2 table {} names what cannot be data", missing.index));
        let place = FileOffset::new(core.shape.offset(missing.home));
        core.damages.add(&core.name, flaw.at(place));
        return Err(Errno::IO);
    }
    // What has been thrown out since may have been this table, with changes that we did not see.
    if meta.map.evictions == evictions {
        meta.map.insert(missing, entries);
    }
    Ok(())
}
