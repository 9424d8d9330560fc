//! Opens an image. All its structures are validated before use.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use flowstone_block::{Damage, Errno, Error, Result};
use flowstone_fileio::{Access, FileIo};

use super::by_hand::ByHand;
use super::core::Core;
use super::disk::Qcow2Image;
use super::header::Header;
use super::header_io::{read_header, write_autoclear};
use super::looks::{Length, Looked, look_through};
use super::maintenance::{Knowledge, Maintenance};
use super::redo::{Left, Lost, Memory, Place, Redo, recall};
use super::replay;
use super::slow_path::{SlowPath, SlowPathWorker};
use super::survey::{Survey, SurveyError};
use flowstone_image::runtime::trims::Trims;
use flowstone_image::runtime::worker::{self, End};
use flowstone_image::{DiscardMode, Image, valid_capacity};
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
        let opened =
            Self::take_over(path, file, backing, discard, access, memory, start_maintenance);
        opened.map(|(mut image, maintenance)| {
            image.maintenance = maintenance;
            image
        })
    }

    /// Opens for writing without any thread: the caller runs the upkeep.
    pub fn open_stepped(
        path: &Path,
        file: Box<dyn FileIo>,
        discard: DiscardMode,
    ) -> Result<(Self, ByHand)> {
        let (access, memory) = (Access::Write, Memory::None);
        let make = |core: &Arc<Core>, knowledge| Maintenance::new(Arc::clone(core), knowledge);
        let opened = Self::take_over(path, file, None, discard, access, memory, make)?;
        let (image, maintenance) = opened;
        let maintenance = maintenance.expect("an image that is open for writing has one");
        let by_hand = ByHand::new(maintenance, image.slow_path.by_hand(), image.trims.by_hand());
        Ok((image, by_hand))
    }

    /// Opens, and calls `maintain` with the initial state of the maintenance worker, if the image
    /// is to be written.
    fn take_over<M>(
        path: &Path,
        file: Box<dyn FileIo>,
        backing: Option<Box<dyn Image>>,
        discard: DiscardMode,
        access: Access,
        memory: Memory<'_>,
        maintain: impl FnOnce(&Arc<Core>, Knowledge) -> io::Result<M>,
    ) -> Result<(Self, Option<M>)> {
        let name = path.display().to_string();
        let readonly = access != Access::Write;
        let header = read_header(&name, &*file)?;
        let capacity = valid_capacity(header.disk_bytes).map_err(|why| {
            Error::invalid(&name, format!("not a usable disk: {why}"), "resize it with qemu-img")
        })?;
        check_usable(&name, &header, &*file, readonly)?;
        let left = recall(memory, header.autoclear).map_err(|lost| lost.explain(&name))?;
        let length = Length::make_whole(&*file, &header, readonly)
            .map_err(|error| Refusal::Host(error).explain(&name))?;
        let looked = look_through(&*file, &header, length.whole, left.changes(), readonly);
        let mut looked = looked.map_err(|refusal| {
            length.restore(&*file);
            Refusal::Survey(refusal).explain(&name)
        })?;
        let backing_bytes = backing.as_ref().map_or(0, |image| image.geometry().capacity.bytes());
        let meta = looked.meta(header.shape, &*file, length.whole, backing_bytes);
        let core = Core::new(name, file, backing, readonly, discard, capacity, meta);
        let image = Self::of(Arc::new(core));
        let known = image.replay(header, memory, left, looked);
        let maintained = known.and_then(|known| {
            let begun = known.map(|known| maintain(&image.core, known)).transpose();
            begun.map_err(Refusal::Host)
        });
        let maintained = maintained.map_err(|refusal| {
            length.restore(&*image.core.file);
            refusal.explain(&image.core.name)
        })?;
        Ok((image, maintained))
    }

    /// An image without a maintenance worker yet.
    fn of(core: Arc<Core>) -> Self {
        let slow_path = SlowPath::new(Arc::clone(&core));
        let trims = Arc::new(start_trims(&core));
        Self { core, slow_path, trims, maintenance: None }
    }

    /// Applies the changes that a killed daemon has left. The image names its redo file before the
    /// maintenance worker begins with the returned state.
    fn replay(
        &self,
        mut header: Header,
        memory: Memory<'_>,
        left: Left,
        looked: Looked,
    ) -> std::result::Result<Option<Knowledge>, Refusal> {
        replay::replay(&self.core, left.changes())?;
        let Some(refcounts) = looked.refcounts else { return Ok(None) };
        let redo = remember(&*self.core.file, &mut header, memory, left)?;
        let first_sector = write_autoclear(&*self.core.file, &header)?;
        self.core.meta().redo = redo;
        let Survey { holes, leaks, live, .. } = looked.survey;
        let surveyed = live.is_some();
        Ok(Some(Knowledge { header, first_sector, refcounts, holes, leaks, surveyed }))
    }
}

/// Why an image with a valid header is not opened.
enum Refusal {
    Survey(SurveyError),
    Host(io::Error),
    Lost(Lost),
}

impl Refusal {
    fn explain(self, name: &str) -> Error {
        let host = |error| Error::host(name, error, "check the host's file system");
        match self {
            Self::Survey(SurveyError::Damaged(flaw)) => {
                Error::damaged(flaw.in_image(name), REPAIR_ADVICE)
            }
            Self::Survey(SurveyError::Host(errno)) => host(errno.into()),
            Self::Host(error) => host(error),
            Self::Lost(lost) => lost.explain(name),
        }
    }
}

impl From<SurveyError> for Refusal {
    fn from(refusal: SurveyError) -> Self {
        Self::Survey(refusal)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Host(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Host(errno.into())
    }
}

fn start_trims(core: &Arc<Core>) -> Trims {
    let (activity, discards) = (Arc::clone(&core.activity), Arc::clone(&core.discards));
    let (core, clock) = (Arc::clone(core), core.clock.clone());
    Trims::new(activity, discards, clock, move || {
        let mut worker = SlowPathWorker::new(Arc::clone(&core))?;
        Ok(Box::new(move |extent| worker.trim(extent)))
    })
}

/// Prepares the redo file for changes of the map; sets the mark in the header, which the caller
/// must write.
fn remember(
    file: &dyn FileIo,
    header: &mut Header,
    memory: Memory<'_>,
    left: Left,
) -> std::result::Result<Option<Redo>, Refusal> {
    let redo = match (memory, left) {
        (Memory::None, _) => None,
        (Memory::Beside(place), Left::Changes(found, _)) => {
            Some(Redo::resume(place, found).map_err(Refusal::Lost)?)
        }
        (Memory::Beside(place), left) => {
            // The old mark is cleared before a redo file exists that it does not belong to.
            header.autoclear = 0;
            write_autoclear(file, header)?;
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
