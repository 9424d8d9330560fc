//! Opens an image. All that it says is checked before it is used.

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use flowstone_block::{Damage, Errno, Error, Result};
use flowstone_fileio::{Access, BlockingFile, FileIo};

use super::core::Core;
use super::disk::Qcow2Image;
use super::header::Header;
use super::header_io::{read_header, read_l1, write_autoclear};
use super::maintenance::{Knowledge, Maintenance};
use super::map::Map;
use super::meta::Meta;
use super::redo::{Left, Lost, Memory, Redo, recall};
use super::refcounts::Refcounts;
use super::replay;
use super::shape::HostCluster;
use super::slow_path::{SlowPath, SlowPathWorker};
use super::space::Space;
use super::survey::{Survey, SurveyError, Surveyor};
use crate::capacity::valid_capacity;
use crate::runtime::trims::Trims;
use crate::runtime::worker::{self, End};
use crate::{DiscardMode, Image};
use tracing::warn;

const REPAIR_ADVICE: &str = "see `flowstone check --repair`, or restore it from a backup";

impl Qcow2Image {
    /// Takes over an open host file.
    pub fn open(
        path: &Path,
        file: Box<dyn FileIo>,
        backing: Option<Box<dyn Image>>,
        discard: DiscardMode,
        access: Access,
        memory: Memory<'_>,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let host = |error: io::Error| Error::host(&name, error, "check the host's file system");
        let explain = |refusal: SurveyError| match refusal {
            SurveyError::Host(errno) => host(errno.into()),
            SurveyError::Damaged(flaw) => Error::damaged(flaw.in_image(&name), REPAIR_ADVICE),
        };
        let readonly = access != Access::Write;
        let header = read_header(&name, &*file)?;
        let capacity = valid_capacity(header.disk_bytes).map_err(|why| {
            Error::invalid(&name, format!("not a usable disk: {why}"), "resize it with qemu-img")
        })?;
        check_usable(&name, &header, &*file, readonly)?;
        let mut reader = BlockingFile::new(&*file).map_err(host)?;
        let mut file_bytes = file.size().map_err(host)?;
        let whole = file_bytes.next_multiple_of(header.shape.cluster_bytes());
        if !readonly && whole != file_bytes {
            file.set_size(whole).map_err(host)?;
            file_bytes = whole;
        }
        let left = recall(memory, header.autoclear).map_err(|lost| lost.explain(&name))?;
        let promised = replay::named(header.shape, left.changes());
        let l1 = read_l1(&mut reader, &header, file_bytes).map_err(explain)?;
        let (mut survey, refcounts) = match readonly {
            true => Default::default(),
            false => {
                let looked = look_through(&mut reader, &header, file_bytes, &l1, &promised);
                let (survey, refcounts) = looked.map_err(explain)?;
                (survey, Some(refcounts))
            }
        };
        drop(reader);
        let backing_bytes = backing.as_ref().map_or(0, |image| image.geometry().capacity.bytes());
        let map = Map::new(header.shape, l1);
        let mut meta = Meta::new(map, Space::new(survey.next), file_bytes, backing_bytes);
        meta.tables = std::mem::take(&mut survey.tables);
        meta.live = survey.live;
        let core =
            Arc::new(Core::new(name.clone(), file, backing, readonly, discard, capacity, meta));
        let slow_path = SlowPath::new(Arc::clone(&core));
        let trims = Arc::new(start_trims(&core));
        let mut image = Self { core, slow_path, trims, maintenance: None };
        replay::replay(&image.core, left.changes()).map_err(explain)?;
        if let Some(refcounts) = refcounts {
            image.start(header, memory, left, survey, refcounts).map_err(|error| match error {
                StartError::Host(error) => host(error),
                StartError::Lost(lost) => lost.explain(&name),
            })?;
        }
        Ok(image)
    }

    /// Starts the maintenance worker, once the image says where changes of the map survive.
    fn start(
        &mut self,
        mut header: Header,
        memory: Memory<'_>,
        left: Left,
        survey: Survey,
        refcounts: Refcounts,
    ) -> std::result::Result<(), StartError> {
        let redo = remember(&*self.core.file, &mut header, memory, left)?;
        let first_sector = write_autoclear(&*self.core.file, &header)?;
        self.core.meta().redo = redo;
        let Survey { holes, leaks, live, .. } = survey;
        let surveyed = live.is_some();
        let knowledge = Knowledge { header, first_sector, refcounts, holes, leaks, surveyed };
        self.maintenance = Some(start_maintenance(&self.core, knowledge)?);
        Ok(())
    }
}

/// Finds out which clusters are in use, and which are not.
fn look_through(
    reader: &mut BlockingFile,
    header: &Header,
    file_bytes: u64,
    l1: &[u64],
    promised: &HashSet<HostCluster>,
) -> std::result::Result<(Survey, Refcounts), SurveyError> {
    let (offset, clusters) = (header.refcount_table_offset, header.refcount_table_clusters);
    let mut refcounts = Refcounts::load(reader, header.shape, offset, clusters)?;
    let surveyor = Surveyor {
        file: reader,
        shape: header.shape,
        file_bytes,
        l1_offset: header.l1_offset,
        l1,
        refcounts: &mut refcounts,
        promised,
    };
    Ok((surveyor.run()?, refcounts))
}

fn start_trims(core: &Arc<Core>) -> Trims {
    let (activity, discards) = (Arc::clone(&core.activity), Arc::clone(&core.discards));
    let core = Arc::clone(core);
    Trims::new(activity, discards, move || {
        let mut worker = SlowPathWorker::new(Arc::clone(&core))?;
        Ok(Box::new(move |extent| worker.trim(extent)))
    })
}

/// Why an image that is sound cannot be written.
enum StartError {
    Host(io::Error),
    Lost(Lost),
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<Errno> for StartError {
    fn from(errno: Errno) -> Self {
        Self::Host(errno.into())
    }
}

/// Where changes of the map survive us; the header gets its mark, which is to be written.
fn remember(
    file: &dyn FileIo,
    header: &mut Header,
    memory: Memory<'_>,
    left: Left,
) -> std::result::Result<Option<Redo>, StartError> {
    let redo = match (memory, left) {
        (Memory::None, _) => None,
        (Memory::Beside(image), Left::Changes(found, _)) => {
            Some(Redo::resume(image, &found).map_err(StartError::Lost)?)
        }
        (Memory::Beside(image), left) => {
            // Void before there is another redo file that it does not belong to.
            header.autoclear = 0;
            write_autoclear(file, header)?;
            left.remove();
            begin(image, header.shape.version)
        }
    };
    header.autoclear = redo.as_ref().map_or(0, |redo| redo.mark().bits());
    Ok(redo)
}

/// A redo file for a new session, if there can be one.
fn begin(image: &Path, version: u32) -> Option<Redo> {
    const FORGETS: &str = "if the daemon is killed, it forgets writes that were not flushed";
    let name = image.display();
    if version < 3 {
        warn!("{name}: version 2 of qcow2: {FORGETS}");
        return None;
    }
    let begun = Redo::begin(image).inspect_err(|error| {
        warn!("{name}: cannot write beside the image: {error}; {FORGETS}");
    });
    begun.ok()
}

/// Refuses what cannot be served like this.
fn check_usable(name: &str, header: &Header, file: &dyn FileIo, readonly: bool) -> Result<()> {
    if !readonly {
        check_writable(name, header)?;
    }
    if header.shape.cluster_bytes() < u64::from(file.block_bytes()) {
        let why = "its clusters are smaller than the blocks of the device";
        return Err(Error::unsupported(name, why, "use --direct off"));
    }
    Ok(())
}

fn check_writable(name: &str, header: &Header) -> Result<()> {
    let advice = "open it read-only, or convert it into a new image with `flowstone convert`";
    if header.corrupt {
        let damage = Damage::of_image(name, "some software has marked it so");
        return Err(Error::damaged(damage, advice));
    }
    let why = if header.snapshots > 0 {
        "it has internal snapshots, which this version can only leave alone"
    } else if header.autoclear & 1 != 0 {
        "it has persistent bitmaps, which this version cannot keep up to date"
    } else {
        return Ok(());
    };
    Err(Error::unsupported(name, why, advice))
}

fn start_maintenance(core: &Arc<Core>, knowledge: Knowledge) -> io::Result<JoinHandle<()>> {
    let (theirs, core) = (Arc::clone(core), Arc::clone(core));
    let make = move || Maintenance::new(theirs, knowledge);
    worker::start(make, Maintenance::run, move |end| {
        if end == End::Panicked {
            core.fail("its maintenance worker has panicked");
        }
        core.commits.abandon();
        core.tell_changed();
        core.wakers.wake_all();
    })
}
