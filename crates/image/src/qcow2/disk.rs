//! A qcow2 image as a whole: opening one, and what can be done with it besides serving.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use flowstone_block::{
    AlignedBuf, Channel, Errno, Error, Extent, Geometry, Layer, Outcome, QueueDepth, Result,
    SECTOR_BYTES, Sector, SectorCount,
};
use flowstone_fileio::{Access, BlockingFile, FileIo, FileOffset};
use tracing::error;

use super::channel::Qcow2Channel;
use super::core::Core;
use super::entry;
use super::header::{AUTOCLEAR_REDO, HEADER_BYTES_MAX, Header};
use super::keeper::{Keeper, Knowledge};
use super::lane::{Lane, Worker};
use super::map::{Map, from_bytes};
use super::meta::{Meta, Source};
use super::redo::Redo;
use super::refcounts::Refcounts;
use super::replay;
use super::space::Space;
use super::survey::{Refusal, Surveyor};
use crate::create::valid_capacity;
use crate::{DiscardMode, Format, Image, Space as SpaceReport};

const REPAIR_ADVICE: &str = "see `flowstone check --repair`, or restore it from a backup";

/// An open qcow2 image.
pub struct Qcow2Image {
    core: Arc<Core>,
    lane: Arc<Lane>,
    discard: DiscardMode,
    keeper: Option<JoinHandle<()>>,
}

/// Reads the header of an image.
pub fn read_header(name: &str, file: &dyn FileIo) -> Result<Header> {
    let host = |error: io::Error| Error::host(name, error, "check the host's file system");
    let bytes = (file.size().map_err(host)? as usize).min(HEADER_BYTES_MAX);
    let mut start = AlignedBuf::zeroed(bytes);
    let mut reader = BlockingFile::new(file).map_err(host)?;
    reader.read(FileOffset::new(0), &mut start).map_err(|errno| host(errno.into()))?;
    Header::decode(&start).map_err(|why| {
        Error::invalid(name, why, "give the right file or --format, or convert it with qemu-img")
    })
}

/// Reads the L1 table, whose entries all name places where a table can be.
pub fn read_l1(
    reader: &mut BlockingFile,
    header: &Header,
    file_bytes: u64,
) -> std::result::Result<Vec<u64>, Refusal> {
    let entries = header.l1_entries as usize;
    if header.l1_offset + header.l1_entries * 8 > file_bytes {
        return Err(Refusal::Damaged("the file ends before its L1 table does".into()));
    }
    let end = (header.l1_offset + header.l1_entries * 8).next_multiple_of(SECTOR_BYTES);
    let mut bytes = AlignedBuf::zeroed((end.min(file_bytes) - header.l1_offset) as usize);
    if entries > 0 {
        reader.read(FileOffset::new(header.l1_offset), &mut bytes)?;
    }
    let mut l1 = from_bytes(&bytes).into_vec();
    l1.truncate(entries);
    for (index, raw) in l1.iter().enumerate() {
        let sound = match entry::cluster(header.shape, *raw) {
            Ok(home) => home.is_none_or(|home| {
                header.shape.offset(home) + header.shape.cluster_bytes() <= file_bytes
            }),
            Err(_) => false,
        };
        if !sound {
            let why = format!("L1 entry {index} ({raw:#x}) does not name a table");
            return Err(Refusal::Damaged(why));
        }
    }
    Ok(l1)
}

impl Qcow2Image {
    /// Takes over an open host file.
    pub fn open(
        path: &Path,
        file: Box<dyn FileIo>,
        backing: Option<Box<dyn Image>>,
        discard: DiscardMode,
        access: Access,
        redo: Option<Redo>,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let host = |error: io::Error| Error::host(&name, error, "check the host's file system");
        let explain = |refusal: Refusal| match refusal {
            Refusal::Host(errno) => host(errno.into()),
            Refusal::Damaged(why) => {
                Error::invalid(&name, format!("the image is damaged: {why}"), REPAIR_ADVICE)
            }
        };
        let readonly = access != Access::Write;
        let mut header = read_header(&name, &*file)?;
        let capacity = valid_capacity(header.disk_bytes).map_err(|why| {
            Error::invalid(&name, format!("not a usable disk: {why}"), "resize it with qemu-img")
        })?;
        if !readonly {
            check_writable(&name, &header)?;
        }
        if header.shape.cluster_bytes() < u64::from(file.block_bytes()) {
            let why = "its clusters are smaller than the blocks of the device";
            return Err(Error::invalid(&name, why, "use --direct off"));
        }
        let mut reader = BlockingFile::new(&*file).map_err(host)?;
        let mut file_bytes = file.size().map_err(host)?;
        let whole = file_bytes.next_multiple_of(header.shape.cluster_bytes());
        if !readonly && whole != file_bytes {
            file.set_size(whole).map_err(host)?;
            file_bytes = whole;
        }
        let mut redo = redo.filter(|_| header.shape.version >= 3);
        if let Some(redo) = redo.as_mut().filter(|_| header.autoclear & AUTOCLEAR_REDO == 0) {
            redo.clear();
        }
        let unwritten = redo.as_ref().map_or(Vec::new(), Redo::records);
        let promised = replay::named(header.shape, &unwritten);
        let l1 = read_l1(&mut reader, &header, file_bytes).map_err(explain)?;
        let (survey, refcounts) = if readonly {
            Default::default()
        } else {
            let (offset, clusters) = (header.refcount_table_offset, header.refcount_table_clusters);
            let mut refcounts = Refcounts::load(&mut reader, header.shape, offset, clusters)
                .map_err(|errno| explain(errno.into()))?;
            let surveyor = Surveyor {
                file: &mut reader,
                shape: header.shape,
                file_bytes,
                l1_offset: header.l1_offset,
                l1: &l1,
                refcounts: &mut refcounts,
                promised: &promised,
            };
            (surveyor.run().map_err(explain)?, Some(refcounts))
        };
        drop(reader);
        // Those who do not know what it stands for must not leave it.
        header.autoclear = if redo.is_some() { AUTOCLEAR_REDO } else { 0 };
        let backing_bytes = backing.as_ref().map_or(0, |image| image.geometry().capacity.bytes());
        let map = Map::new(header.shape, l1);
        let mut meta = Meta::new(map, Space::new(survey.next), file_bytes, backing_bytes);
        meta.tables = survey.tables;
        let core = Arc::new(Core::new(name.clone(), file, backing, readonly, capacity, meta));
        let lane = Lane::new(Arc::clone(&core));
        let mut image = Self { core, lane, discard, keeper: None };
        if let Some(refcounts) = refcounts {
            replay::replay(&image.core, &unwritten).map_err(explain)?;
            write_autoclear(&*image.core.file, &header).map_err(|errno| host(errno.into()))?;
            image.core.meta().redo = redo;
            let knowledge = Knowledge { header, refcounts, holes: survey.holes };
            image.keeper = Some(start_keeper(&image.core, knowledge).map_err(host)?);
        }
        Ok(image)
    }

    fn refuse(&self, what: &str, why: &str, advice: &'static str) -> Error {
        Error::invalid(format!("{what} {}", self.core.name), why.to_owned(), advice)
    }
}

fn check_writable(name: &str, header: &Header) -> Result<()> {
    let why = if header.corrupt {
        "it is marked as damaged"
    } else if header.snapshots > 0 {
        "it has internal snapshots, which this version can only leave alone"
    } else if header.autoclear & 1 != 0 {
        "it has persistent bitmaps, which this version cannot keep up to date"
    } else {
        return Ok(());
    };
    let advice = "open it read-only, or convert it into a new image with `flowstone convert`";
    Err(Error::invalid(name, why, advice))
}

/// Says in the header whether there is a redo file, and clears what we do not know.
fn write_autoclear(file: &dyn FileIo, header: &Header) -> Outcome {
    let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let mut file = BlockingFile::new(file).map_err(failed)?;
    let mut sector = AlignedBuf::zeroed(SECTOR_BYTES as usize);
    file.read(FileOffset::new(0), &mut sector)?;
    let before = sector.to_vec();
    header.update(&mut sector);
    if sector[..] != before[..] {
        file.write(FileOffset::new(0), &mut sector)?;
        file.sync()?;
    }
    Ok(())
}

/// The keeper's file has a thread, so it is opened there.
fn start_keeper(core: &Arc<Core>, knowledge: Knowledge) -> io::Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    Builder::new().name("keeper".into()).stack_size(512 << 10).spawn(move || {
        match Keeper::new(Arc::clone(&core), knowledge) {
            Ok(keeper) => keeper.run(),
            Err(error) => core.fail(&format!("its keeper cannot work: {error}")),
        }
    })
}

impl Drop for Qcow2Image {
    fn drop(&mut self) {
        self.lane.stop();
        self.core.commits.stop();
        if let Some(keeper) = self.keeper.take()
            && keeper.join().is_err()
        {
            error!("{}: the keeper has panicked; the image may have leaks", self.core.name);
        }
    }
}

impl Layer for Qcow2Image {
    fn geometry(&self) -> Geometry {
        let cluster_bytes = self.core.shape.cluster_bytes() as u32;
        Geometry {
            discards: self.discard == DiscardMode::Deallocate && !self.core.readonly,
            readonly: self.core.readonly,
            logical_block_bytes: self.core.file.block_bytes(),
            discard_granularity_bytes: cluster_bytes.max(4096),
            ..Geometry::with_capacity(self.core.capacity())
        }
    }

    fn channel(&self, depth: QueueDepth) -> io::Result<Box<dyn Channel>> {
        let (core, lane) = (Arc::clone(&self.core), Arc::clone(&self.lane));
        Ok(Box::new(Qcow2Channel::new(core, lane, depth)?))
    }
}

impl Image for Qcow2Image {
    fn format(&self) -> Format {
        Format::Qcow2
    }

    fn space(&self) -> io::Result<SpaceReport> {
        Ok(SpaceReport {
            virtual_bytes: self.core.capacity().bytes(),
            allocated_bytes: self.core.file.allocated_bytes()?,
        })
    }

    fn next_data(&self, from: Sector) -> io::Result<Option<Extent>> {
        let end = self.core.capacity().bytes();
        let mut position = from.get() * SECTOR_BYTES;
        let mut worker = None;
        while position < end {
            let found = self.core.meta().find(position, end - position);
            let Ok(part) = found else {
                if worker.is_none() {
                    worker = Some(Worker::new(Arc::clone(&self.core))?);
                }
                worker.as_mut().expect("made above").load_at(position)?;
                continue;
            };
            let part_end = position + part.bytes;
            let data = match part.source {
                Source::Zero => None,
                Source::Backing => self.data_below(position, part_end)?,
                Source::File { .. } | Source::Compressed(_) | Source::Damaged => {
                    Some(position..part_end)
                }
            };
            if let Some(data) = data {
                let first = Sector::new(data.start / SECTOR_BYTES);
                let count = SectorCount::new((data.end - data.start).div_ceil(SECTOR_BYTES));
                return Ok(Extent::new(first, count));
            }
            position = part_end;
        }
        Ok(None)
    }

    fn resize(&self, capacity: SectorCount) -> Result<()> {
        const ADVICE: &str = "give a size such as 8G";
        valid_capacity(capacity.bytes()).map_err(|why| self.refuse("resize", why, ADVICE))?;
        if self.core.readonly {
            return Err(self.refuse(
                "resize",
                "it is open for reading only",
                "open it for writing",
            ));
        }
        let before = self.core.capacity();
        let largest = self.core.shape.l2_entries() * self.core.shape.cluster_bytes() * (4 << 20);
        if capacity.bytes() > largest {
            let why = "clusters of this size cannot make so large a disk";
            return Err(self.refuse("resize", why, "convert it to larger clusters"));
        }
        let backing_bytes = self.core.meta().backing_bytes;
        if capacity > before && backing_bytes > before.bytes() {
            let why = "its backing file is larger than it, and would show through";
            return Err(self.refuse(
                "resize",
                why,
                "convert it to an image without a backing file",
            ));
        }
        let host = |error: io::Error| {
            Error::host(format!("resize {}", self.core.name), error, "check the host's file system")
        };
        if capacity < before {
            let data = self.next_data(Sector::new(capacity.get())).map_err(host)?;
            if data.is_some() {
                let why = "there is data beyond the new end";
                let advice =
                    "shrink the file system inside first and discard what it leaves (fstrim)";
                return Err(self.refuse("resize", why, advice));
            }
        }
        // Smaller at once, so that nobody writes there any more; larger when there is a map for it.
        self.core.set_capacity(capacity.min(before));
        let resized = self.core.commits.ask_for_size(capacity);
        self.core.set_capacity(if resized.is_ok() { capacity } else { before });
        resized.map_err(|errno| host(errno.into()))
    }

    fn compact(&self) -> Result<()> {
        if self.core.readonly {
            let why = "it is open for reading only";
            return Err(self.refuse("compact", why, "open it for writing"));
        }
        // Free clusters are punched when an image is opened, and its end is cut off when it is
        // closed; what was dropped since is written now.
        let ticket = self.core.commits.ask();
        let outcome = loop {
            if let Some(outcome) = self.core.commits.outcome(ticket) {
                break outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        outcome.map_err(|errno| {
            let name = format!("compact {}", self.core.name);
            Error::host(name, errno, "check the host's file system")
        })
    }

    fn serving(&self) -> String {
        let depth = if self.core.backing.is_some() { ", with a backing file" } else { "" };
        let cluster_kib = self.core.shape.cluster_bytes() as f64 / 1024.0;
        format!("qcow2, clusters of {cluster_kib} KiB{depth}, {}", self.core.file.describe())
    }
}

impl Qcow2Image {
    /// The first part of a range that the backing file may have data for.
    fn data_below(&self, start: u64, end: u64) -> io::Result<Option<std::ops::Range<u64>>> {
        let Some(backing) = &self.core.backing else { return Ok(None) };
        let found = backing.next_data(Sector::new(start / SECTOR_BYTES))?;
        Ok(found.and_then(|extent| {
            let data_end = extent.start_bytes() + extent.bytes();
            let data = extent.start_bytes().max(start)..data_end.min(end);
            (!data.is_empty()).then_some(data)
        }))
    }
}

impl Worker {
    /// Reads the table that maps a byte of the disk.
    fn load_at(&mut self, position: u64) -> io::Result<()> {
        let (_, generation) =
            self.find(position, 1).map_err(|errno: Errno| io::Error::from(errno))?;
        self.leave(generation);
        Ok(())
    }
}
