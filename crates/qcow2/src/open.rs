//! Opens an image. All its structures are validated before use.

use std::io;
use std::path::Path;
use std::sync::Arc;

use flowstone_block::{Damage, Error, Result};
use flowstone_fileio::{Access, FileIo};

use super::by_hand::ByHand;
use super::core::Core;
use super::disk::Qcow2Image;
use super::header::Header;
use super::header_io::{clear_mark, read_header};
use super::looks::{Length, Looked, look_through};
use super::maintenance::{Knowledge, Maintenance};
use super::redo::{Left, Place, Redo, recall};
use super::replay;
use super::slow_path::{SlowPath, SlowPathWorker};
use super::survey::Survey;
use flowstone_image::runtime::trims::Trims;
use flowstone_image::runtime::worker::{self, End, Worker};
use flowstone_image::{DiscardMode, Image, Progress, valid_capacity};
use tracing::warn;

const REPAIR_ADVICE: &str = "see `flowstone check --repair`, or restore it from a backup";

/// How an image is opened.
pub struct Opening<'a> {
    /// Its backing file, if it has one.
    pub backing: Option<Box<dyn Image>>,
    /// What a discard does.
    pub discard: DiscardMode,
    /// For writing, or for reading only.
    pub access: Access,
    /// Where changes of the map are kept for the daemon that follows a killed one: in a redo file
    /// beside the image. If nowhere, writes that are not flushed do not survive a killed daemon.
    pub memory: Option<Place<'a>>,
    /// Told before the first write.
    pub progress: Progress,
}

impl Opening<'_> {
    /// An image without a backing file, which forgets with the process what is not flushed.
    pub fn to(access: Access) -> Self {
        let (discard, memory) = (DiscardMode::default(), None);
        Self { backing: None, discard, access, memory, progress: Progress::default() }
    }
}

impl Qcow2Image {
    /// Takes over an open host file.
    pub fn open(path: &Path, file: Box<dyn FileIo>, opening: Opening<'_>) -> Result<Self> {
        let (mut image, maintenance) = Self::take_over(path, file, opening, start_maintenance)?;
        image.maintenance = maintenance.unwrap_or_default();
        Ok(image)
    }

    /// Opens for writing without any thread: the caller runs the upkeep.
    pub fn open_stepped(
        path: &Path,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
    ) -> Result<(Self, ByHand)> {
        let opening = Opening { discard, ..Opening::to(Access::Write) };
        let (image, maintenance) = Self::take_over(path, file, opening, begin_maintenance)?;
        let maintenance = maintenance.expect("an image that is open for writing has one");
        let by_hand = ByHand::new(maintenance, image.slow_path.by_hand(), image.trims.by_hand());
        Ok((image, by_hand))
    }

    /// Opens, and calls `maintain` with the initial state of the maintenance worker, if the image
    /// is to be written.
    fn take_over<M>(
        path: &Path,
        file: Box<dyn FileIo>,
        opening: Opening<'_>,
        maintain: impl FnOnce(Arc<Core>, Knowledge) -> Result<M>,
    ) -> Result<(Self, Option<M>)> {
        let Opening { backing, discard, access, memory, progress } = opening;
        let name = path.display().to_string();
        let readonly = access != Access::Write;
        let header = read_header(&name, &*file)?;
        let capacity = valid_capacity(header.disk_bytes).map_err(|why| {
            Error::invalid(&name, format!("not a usable disk: {why}"), "resize it with qemu-img")
        })?;
        check_usable(&name, &header, &*file, readonly)?;
        let left = recall(memory, header.autoclear).map_err(|lost| lost.explain(&name))?;
        let length =
            Length::make_whole(&*file, &header, readonly).map_err(|error| failed(&name, error))?;
        let looked = look_through(&*file, &header, length.whole, left.changes(), readonly);
        let mut looked = looked.map_err(|refusal| {
            length.restore(&*file);
            refusal.explain(&name, REPAIR_ADVICE)
        })?;
        let backing_bytes = backing.as_ref().map_or(0, |image| image.geometry().capacity.bytes());
        let meta = looked.meta(header.shape, &*file, length.whole, backing_bytes);
        let core = Core::new(name, file, backing, readonly, discard, capacity, meta);
        let image = Self::of(Arc::new(core));
        let maintain = || {
            if !readonly {
                progress.begin_writing(&image.core.name)?;
            }
            let known = image.replay(header, memory, left, looked)?;
            known.map(|known| maintain(Arc::clone(&image.core), known)).transpose()
        };
        let maintained = maintain().inspect_err(|_| length.restore(&*image.core.file))?;
        Ok((image, maintained))
    }

    /// An image without a maintenance worker yet.
    fn of(core: Arc<Core>) -> Self {
        let slow_path = SlowPath::new(Arc::clone(&core));
        let trims = Arc::new(start_trims(&core));
        Self { core, slow_path, trims, maintenance: Worker::default() }
    }

    /// Applies the changes that a killed daemon has left. The maintenance worker begins with the
    /// returned state.
    fn replay(
        &self,
        mut header: Header,
        memory: Option<Place<'_>>,
        left: Left,
        looked: Looked,
    ) -> Result<Option<Knowledge>> {
        replay::replay(&self.core, left.changes())
            .map_err(|refusal| refusal.explain(&self.core.name, REPAIR_ADVICE))?;
        let Some(refcounts) = looked.refcounts else { return Ok(None) };
        let redo = remember(&self.core, &mut header, memory, left)?;
        let Survey { holes, leaks, live, .. } = looked.survey;
        let surveyed = live.is_some();
        Ok(Some(Knowledge { header, redo, refcounts, holes, leaks, surveyed }))
    }
}

fn failed(name: &str, error: io::Error) -> Error {
    Error::host(name, error, "check the host's file system")
}

fn start_trims(core: &Arc<Core>) -> Trims {
    let (activity, discards) = (Arc::clone(&core.activity), Arc::clone(&core.discards));
    let (core, clock) = (Arc::clone(core), core.clock.clone());
    Trims::new(activity, discards, clock, move || {
        let mut worker = SlowPathWorker::new(Arc::clone(&core))?;
        Ok(Box::new(move |extent| worker.trim(extent)))
    })
}

/// Prepares the redo file for changes of the map; sets the mark in the header, which the
/// maintenance worker writes.
fn remember(
    core: &Core,
    header: &mut Header,
    memory: Option<Place<'_>>,
    left: Left,
) -> Result<Option<Redo>> {
    let redo = match (memory, left) {
        (None, _) => None,
        (Some(place), Left::Changes(found, _)) => {
            Some(Redo::resume(place, found).map_err(|lost| lost.explain(&core.name))?)
        }
        (Some(place), left) => {
            // The old mark is cleared before a redo file exists that it does not belong to.
            let cleared = clear_mark(&*core.file, header);
            cleared.map_err(|errno| failed(&core.name, errno.into()))?;
            left.remove();
            begin(place, header.shape.version)
        }
    };
    header.autoclear = redo.as_ref().map_or(0, |redo| redo.mark().bits());
    Ok(redo)
}

/// Begins a redo file for a new session, if possible.
fn begin(place: Place<'_>, version: u32) -> Option<Redo> {
    const FORGETS: &str = "if the daemon is killed, it forgets writes that were not flushed";
    let name = place.image.display();
    if version < 3 {
        warn!("{name}: version 2 of qcow2: {FORGETS}");
        return None;
    }
    let begun = Redo::begin(place).inspect_err(|error| {
        warn!("{name}: cannot keep a redo file: {error}; {FORGETS}");
    });
    begun.ok()
}

/// Refuses images that cannot be served with this access or these options.
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

fn begin_maintenance(core: Arc<Core>, knowledge: Knowledge) -> Result<Maintenance> {
    let name = core.name.clone();
    Maintenance::new(core, knowledge).map_err(|error| failed(&name, error))
}

fn start_maintenance(core: Arc<Core>, knowledge: Knowledge) -> Result<Worker> {
    let (theirs, name) = (Arc::clone(&core), core.name.clone());
    let make = move || begin_maintenance(theirs, knowledge);
    worker::start(&name, make, Maintenance::run, move |end| {
        if end == End::Panicked {
            core.fail("its maintenance worker has panicked");
        }
        core.commits.abandon();
        core.tell_changed();
        core.wakers.wake_all();
    })
}
