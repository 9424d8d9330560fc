//! Reads L2 tables.

use std::sync::MutexGuard;

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_fileio::{BlockingFile, FileOffset};
use flowstone_image::Flaw;

use super::super::core::Core;
use super::super::map::{Missing, from_bytes};
use super::super::meta::Meta;

/// Looks something up in the map with `find`, and reads the tables that it misses. Returns the
/// map's lock, under which the answer holds.
pub fn look<'core, T>(
    core: &'core Core,
    file: &mut BlockingFile,
    find: impl Fn(&mut Meta) -> Result<T, Missing>,
) -> Result<(MutexGuard<'core, Meta>, T), Errno> {
    loop {
        let mut meta = core.meta();
        let missing = match find(&mut meta) {
            Ok(found) => return Ok((meta, found)),
            Err(missing) => missing,
        };
        drop(meta);
        load(core, file, missing)?;
    }
}

/// Loads a table into the map. Its entries may still be missing afterwards, if others have used the
/// memory meanwhile.
pub fn load(core: &Core, file: &mut BlockingFile, missing: Missing) -> Outcome {
    let read = TableRead::begin(core, missing);
    let entries = read.read(core, file)?;
    read.finish(core, entries)
}

/// A table being read into the map, which is not locked meanwhile.
pub struct TableRead {
    missing: Missing,
    /// Eviction count before the table was read.
    evictions: u64,
}

impl TableRead {
    pub fn begin(core: &Core, missing: Missing) -> Self {
        Self { missing, evictions: core.meta().map.evictions }
    }

    pub fn read(&self, core: &Core, file: &mut BlockingFile) -> Result<Box<[u64]>, Errno> {
        let mut bytes = AlignedBuf::zeroed(core.shape.cluster_bytes() as usize);
        file.read(FileOffset::new(core.shape.offset(self.missing.home)), &mut bytes)?;
        Ok(from_bytes(&bytes))
    }

    pub fn finish(self, core: &Core, entries: Box<[u64]>) -> Outcome {
        let Self { missing, evictions } = self;
        let mut meta = core.meta();
        // A table evicted since may have been this one, with changes that this read missed.
        let is_current = meta.map.evictions == evictions;
        let is_current = mutated("qcow2.tables.overlooks-an-eviction", is_current, true);
        if !is_current {
            return Ok(());
        }
        if !core.readonly && !meta.is_sound(&entries) {
            drop(meta);
            let flaw = Flaw::new(format!("L2 table {} names what cannot be data", missing.index));
            let place = FileOffset::new(core.shape.offset(missing.home));
            core.damages.add(&core.name, flaw.at(place));
            return Err(Errno::IO);
        }
        meta.map.insert(missing, entries);
        Ok(())
    }
}
