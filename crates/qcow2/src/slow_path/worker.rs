//! A thread of the slow-path pool: requests in sequence, with blocking calls.

use std::io;
use std::sync::Arc;

use flowstone_block::{
    AlignedBuf, BlockingDisk, Errno, Extent, Op, Outcome, Request, SECTOR_BYTES, Sector, is_whole,
    mutated,
};
use flowstone_fileio::{BlockingFile, FileOffset};
use flowstone_image::Flaw;

use super::super::compressed::inflate;
use super::super::core::Core;
use super::super::entry::{Compressed, Mapping};
use super::super::epochs::EpochPins;
use super::super::meta::{MappedPart, Source};
use super::super::shape::{GuestCluster, HostCluster, sector_bytes};
use super::tables::look;

/// State of one thread.
pub struct SlowPathWorker {
    pub(super) core: Arc<Core>,
    pub(super) file: BlockingFile,
    pub(super) pins: EpochPins,
    backing: Option<BlockingDisk>,
}

/// Number of times that a request asks for room before it fails: other requests may take the room
/// as soon as it is made.
pub(super) const ASKS_MAX: u32 = 16;
/// Maximum bytes read for a request at once.
const CHUNK_BYTES: u64 = 1 << 20;

impl SlowPathWorker {
    pub fn new(core: Arc<Core>) -> io::Result<Self> {
        let file = BlockingFile::new(&*core.file)?;
        let pins = core.epochs.register();
        let backing = core.backing.as_deref().map(|image| BlockingDisk::new(image)).transpose()?;
        Ok(Self { core, file, pins, backing })
    }

    /// Carries a request out.
    pub fn serve(&mut self, request: &mut Request) -> Outcome {
        let outcome = match request.op {
            Op::Read(extent) => self.serve_read(request, extent),
            Op::Write(extent) => self.serve_write(request, extent),
            Op::WriteZeroes { extent, .. } => self.zero(extent, false),
            // The queue itself handles flushes, and another thread discards.
            Op::Discard(_) | Op::Flush => Ok(()),
        };
        self.notify_maintenance();
        outcome
    }

    /// Discards a range; its space is freed when a commit has made that durable.
    pub fn trim(&mut self, extent: Extent) -> Outcome {
        let outcome = self.zero(extent, true);
        self.notify_maintenance();
        outcome
    }

    fn notify_maintenance(&self) {
        let (changed, crowded) = {
            let meta = self.core.meta();
            (meta.is_changed(), meta.is_crowded())
        };
        if changed {
            self.core.commits.touch();
        }
        if crowded {
            self.core.commits.ask();
        }
    }

    fn serve_read(&mut self, request: &mut Request, extent: Extent) -> Outcome {
        let mut buffer = AlignedBuf::zeroed(extent.bytes().min(CHUNK_BYTES) as usize);
        let mut at = 0;
        while at < extent.bytes() {
            let bytes = (extent.bytes() - at).min(CHUNK_BYTES);
            let target = &mut buffer[..bytes as usize];
            self.read(extent.start_bytes() + at, target)?;
            request.copy_in(at as usize, target);
            at += bytes;
        }
        Ok(())
    }

    /// Reads from `position` of the disk into `target`.
    pub fn read(&mut self, position: u64, target: &mut [u8]) -> Outcome {
        let mut at = 0;
        while at < target.len() {
            let here = position + at as u64;
            let (part, epoch) = self.find(here, (target.len() - at) as u64)?;
            let piece = &mut target[at..at + part.bytes as usize];
            let outcome = self.read_part(part.source, here, piece);
            self.pins.unpin(epoch);
            outcome?;
            at += part.bytes as usize;
        }
        Ok(())
    }

    fn read_part(&mut self, source: Source, position: u64, target: &mut [u8]) -> Outcome {
        match source {
            Source::File { offset, .. } => self.file.read(FileOffset::new(offset), target),
            Source::Zero => {
                target.fill(0);
                Ok(())
            }
            Source::Backing => {
                let backing = self.backing.as_mut().expect("the map knows that there is one");
                backing.read(Sector::new(position / SECTOR_BYTES), target)
            }
            Source::Compressed(place) => {
                let within = position % self.core.shape.cluster_bytes();
                let cluster = self.read_compressed(position, place)?;
                target.copy_from_slice(&cluster[within as usize..within as usize + target.len()]);
                Ok(())
            }
            Source::Damaged => Err(self.report_damage(position, None, "a cluster is nowhere")),
        }
    }

    fn read_compressed(&mut self, position: u64, place: Compressed) -> Result<Vec<u8>, Errno> {
        let file_bytes = self.core.meta().file_bytes;
        let sector = sector_bytes(&*self.core.file) as u64;
        let start = place.offset / sector * sector;
        let end = (place.offset + place.bytes).next_multiple_of(sector).min(file_bytes);
        if end <= place.offset {
            return Err(Errno::IO);
        }
        let mut bytes = AlignedBuf::zeroed((end - start) as usize);
        self.file.read(FileOffset::new(start), &mut bytes)?;
        let deflated = &bytes[(place.offset - start) as usize..];
        inflate(deflated, self.core.shape.cluster_bytes() as usize).map_err(|_| {
            let place = FileOffset::new(place.offset);
            self.report_damage(position, Some(place), "a compressed cluster cannot be inflated")
        })
    }

    /// Records damage: bytes of the disk are lost.
    fn report_damage(&self, position: u64, place: Option<FileOffset>, what: &str) -> Errno {
        let flaw = Flaw::new(what).of(Sector::new(position / SECTOR_BYTES));
        let flaw = match place {
            Some(place) => flaw.at(place),
            None => flaw,
        };
        self.core.damages.add(&self.core.name, flaw);
        Errno::IO
    }

    /// Returns the location of a position; valid until the returned epoch is unpinned.
    fn find(&mut self, position: u64, most: u64) -> Result<(MappedPart, u64), Errno> {
        let (meta, part) = look(&self.core, &mut self.file, |meta| meta.find(position, most))?;
        Ok((part, self.pins.hold(meta.epoch, meta)))
    }

    fn serve_write(&mut self, request: &mut Request, extent: Extent) -> Outcome {
        let cluster_bytes = self.core.shape.cluster_bytes();
        let mut buffer = AlignedBuf::zeroed(cluster_bytes.min(extent.bytes()) as usize);
        let mut at = 0;
        while at < extent.bytes() {
            let position = extent.start_bytes() + at;
            let bytes = (extent.bytes() - at).min(cluster_bytes - position % cluster_bytes);
            let data = &mut buffer[..bytes as usize];
            request.copy_out(at as usize, data);
            if !is_whole(&request.memory) {
                return Err(Errno::FAULT);
            }
            self.write(position, data)?;
            at += bytes;
        }
        Ok(())
    }

    /// Writes `data`, which lies in one cluster, to `position` of the disk.
    pub fn write(&mut self, position: u64, data: &mut [u8]) -> Outcome {
        let shape = self.core.shape;
        let guest = shape.guest_at(position);
        let within = position - shape.position(guest);
        match self.prepare(guest)? {
            Prepared::InPlace { host, epoch } => {
                let offset = FileOffset::new(shape.offset(host) + within);
                let outcome = self.file.write(offset, data);
                self.pins.unpin(epoch);
                outcome
            }
            Prepared::Anew { host, reads_zero } => {
                let names_first = mutated("qcow2.slow-path.names-before-the-data", false, true);
                if names_first {
                    self.core.meta().name(guest, host);
                }
                let core = Arc::clone(&self.core);
                let mut claim = Claim { core: &core, guest, host, outcome: Err(Errno::IO) };
                claim.outcome = self.write_anew(guest, host, reads_zero, within as usize, data);
                claim.outcome
            }
        }
    }

    /// Fills a clean cluster with the content of the old one, overlaid with `data`.
    fn write_anew(
        &mut self,
        guest: GuestCluster,
        host: HostCluster,
        reads_zero: bool,
        within: usize,
        data: &mut [u8],
    ) -> Outcome {
        let shape = self.core.shape;
        let offset = shape.offset(host);
        if reads_zero || data.len() as u64 == shape.cluster_bytes() {
            return self.file.write(FileOffset::new(offset + within as u64), data);
        }
        let mut cluster = AlignedBuf::zeroed(shape.cluster_bytes() as usize);
        self.read(shape.position(guest), &mut cluster)?;
        cluster[within..within + data.len()].copy_from_slice(data);
        self.file.write(FileOffset::new(offset), &mut cluster)
    }

    /// Waits for commits until the redo file has room for a change of the map.
    pub(super) fn wait_while_full(&self) -> Outcome {
        while self.core.meta().is_full(1) {
            self.core.commits.run()?;
        }
        Ok(())
    }

    /// Determines how to write a cluster. A new host cluster is filled only under an exclusive
    /// lock.
    fn prepare(&mut self, guest: GuestCluster) -> Result<Prepared, Errno> {
        let mut asked = 0;
        let core = Arc::clone(&self.core);
        loop {
            let (mut meta, mapping) = look(&core, &mut self.file, |meta| meta.mapping(guest))?;
            if meta.is_full(1) {
                drop(meta);
                self.wait_while_full()?;
                continue;
            }
            let mapping = mapping.ok_or(Errno::IO)?;
            if let Mapping::Data { host, ours: true } = mapping {
                return Ok(Prepared::InPlace { host, epoch: self.pins.hold(meta.epoch, meta) });
            }
            if meta.is_locked(guest) {
                drop(core.wait_for_change(meta));
                continue;
            }
            let taken = if meta.has_room(1) { meta.space.take(1) } else { None };
            if let Some(taken) = taken {
                let reads_zero = match mapping {
                    Mapping::Zero { .. } => true,
                    Mapping::Unallocated => meta.is_zero_below(guest),
                    Mapping::Data { .. } | Mapping::Compressed(_) => false,
                };
                meta.lock_exclusive(guest);
                return Ok(Prepared::Anew { host: HostCluster(taken.start), reads_zero });
            }
            drop(meta);
            if asked == ASKS_MAX {
                return Err(Errno::NOSPC);
            }
            asked += 1;
            core.ask_for_room()?;
        }
    }
}

/// A guest cluster that is written to a new host cluster, under an exclusive lock. Others wait
/// until this is dropped.
struct Claim<'core> {
    core: &'core Core,
    guest: GuestCluster,
    host: HostCluster,
    outcome: Outcome,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let panics = std::thread::panicking();
        let releases = mutated("qcow2.claim.stays-with-a-thread-that-panics", true, !panics);
        if !releases {
            return;
        }
        let mut meta = self.core.meta();
        match self.outcome {
            Ok(()) => meta.name(self.guest, self.host),
            // It stays out of use: a write to it may still be in flight.
            Err(_) if panics => {}
            Err(_) => meta.space.spoil(self.host),
        }
        meta.release(self.guest);
        drop(meta);
        self.core.tell_changed();
    }
}

/// Way to write a cluster.
enum Prepared {
    InPlace {
        host: HostCluster,
        epoch: u64,
    },
    /// Into this clean cluster, which is then mapped; `reads_zero` if the old content is all
    /// zeroes.
    Anew {
        host: HostCluster,
        reads_zero: bool,
    },
}
