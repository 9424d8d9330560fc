//! An image on a simulated disk, a queue of it, and helpers to check its content.

use std::path::Path;

use flowstone_block::{
    AlignedBuf, Channel, Completion, Extent, IoVec, Layer, Op, Outcome, QueueContext, QueueDepth,
    Reactor, Request, Sector, SectorCount,
};
use flowstone_fileio::Access;
use flowstone_image::{CheckOptions, CheckReport, DiscardMode, Format, Image};
use flowstone_sim::SimDisk;

use super::super::{Backing, Opening, Place, Qcow2Image, Qcow2Options, check, create};
use flowstone_raw::RawImage;

/// A new image on a new disk.
pub fn new_disk(sectors: u64, cluster_bytes: u64) -> SimDisk {
    let disk = SimDisk::new(0);
    let options = Qcow2Options { cluster_bytes: Some(cluster_bytes), ..Qcow2Options::default() };
    create("new", &disk, SectorCount::new(sectors), &options).unwrap();
    disk
}

/// A new image with a raw backing file.
pub fn new_overlay(sectors: u64, cluster_bytes: u64) -> SimDisk {
    let disk = SimDisk::new(0);
    let backing = Backing { path: "base.raw".into(), format: Format::Raw };
    let options = Qcow2Options {
        cluster_bytes: Some(cluster_bytes),
        backing: Some(backing),
        ..Qcow2Options::default()
    };
    create("new", &disk, SectorCount::new(sectors), &options).unwrap();
    disk
}

/// A raw image as backing file.
pub fn raw(disk: &SimDisk) -> Box<dyn Image> {
    let file = Box::new(disk.clone());
    let mode = DiscardMode::Deallocate;
    Box::new(RawImage::open(Path::new("base.raw"), file, mode, Access::Read).unwrap())
}

pub fn open(disk: &SimDisk) -> Qcow2Image {
    open_on(disk, None)
}

/// Opens like a daemon: all tables fit in memory.
pub fn open_with_much_memory(disk: &SimDisk, backing: Option<Box<dyn Image>>) -> Qcow2Image {
    let file = Box::new(disk.clone());
    let opening = Opening { backing, ..Opening::to(Access::Write) };
    Qcow2Image::open(Path::new("image"), file, opening).unwrap()
}

pub fn try_open(disk: &SimDisk) -> flowstone_block::Result<Qcow2Image> {
    Qcow2Image::open(Path::new("image"), Box::new(disk.clone()), Opening::to(Access::Write))
}

pub fn open_on(disk: &SimDisk, backing: Option<Box<dyn Image>>) -> Qcow2Image {
    let image = open_with_much_memory(disk, backing);
    if image.core.shape.cluster_bytes() == 512 {
        // So that tables are evicted.
        image.core.meta().map.memory_bytes = 3 * 512;
    }
    image
}

pub fn open_read_only(disk: &SimDisk) -> flowstone_block::Result<Qcow2Image> {
    open_read_only_on(disk, None)
}

pub fn open_read_only_on(
    disk: &SimDisk,
    backing: Option<Box<dyn Image>>,
) -> flowstone_block::Result<Qcow2Image> {
    let file = Box::new(disk.clone());
    Qcow2Image::open(Path::new("image"), file, Opening { backing, ..Opening::to(Access::Read) })
}

pub fn checked(disk: &SimDisk, repair: bool) -> CheckReport {
    checked_beside(disk, None, repair).unwrap()
}

/// Checks an image that may have files of a killed daemon beside it.
pub fn checked_beside(
    disk: &SimDisk,
    memory: Option<Place<'_>>,
    repair: bool,
) -> flowstone_block::Result<CheckReport> {
    let options = CheckOptions { data: false, repair };
    let name = match memory {
        None => "image".into(),
        Some(place) => place.image.display().to_string(),
    };
    check(&name, disk, memory, options, &mut |_, _| {})
}

/// Asserts that the image has neither errors nor leaks.
pub fn assert_clean(disk: &SimDisk) {
    let report = checked(disk, false);
    assert_eq!((report.errors, report.leaked_bytes), (vec![], 0));
}

/// Returns the number at an offset of the file.
pub fn number(disk: &SimDisk, at: u64) -> u64 {
    let mut bytes = [0; 8];
    disk.read_at(at, &mut bytes);
    u64::from_be_bytes(bytes)
}

/// Returns the whole content of the disk.
pub fn contents(image: &dyn Layer) -> Vec<u8> {
    let capacity = image.geometry().capacity;
    let mut bytes = vec![0; capacity.bytes() as usize];
    let mut disk = flowstone_block::BlockingDisk::new(image).unwrap();
    disk.read(Sector::new(0), &mut bytes).unwrap();
    bytes
}

/// A queue whose requests have memory of their own, several in flight.
pub struct Guest {
    channel: Box<dyn Channel>,
    reactor: Reactor,
    buffers: Vec<AlignedBuf>,
    done: Vec<Completion>,
    pub in_flight: usize,
}

impl Guest {
    pub fn new(image: &dyn Layer) -> Self {
        let context = QueueContext::alone(QueueDepth(32)).unwrap();
        let channel = image.channel(&context).unwrap();
        Self {
            channel,
            reactor: context.reactor,
            buffers: Vec::new(),
            done: Vec::new(),
            in_flight: 0,
        }
    }

    /// Submits a request; a write fills every byte with `stamp`.
    pub fn submit(&mut self, op: Op, stamp: u8) -> u32 {
        let memory = matches!(op, Op::Read(_) | Op::Write(_));
        let data = if memory { vec![stamp; op.bytes() as usize] } else { Vec::new() };
        self.submit_data(op, &data, false)
    }

    /// Submits a request with memory of its own, which holds `data`.
    pub fn submit_data(&mut self, op: Op, data: &[u8], durable: bool) -> u32 {
        let tag = self.buffers.len() as u32;
        let mut request = Request::new(op, tag);
        request.durable = durable;
        let mut buffer = AlignedBuf::zeroed(data.len());
        if !data.is_empty() {
            buffer.copy_from_slice(data);
            // SAFETY: the buffer is kept until the guest goes, after its channel.
            request.memory.push(unsafe { IoVec::of(&mut buffer) });
        }
        self.buffers.push(buffer);
        self.channel.submit(request);
        self.in_flight += 1;
        tag
    }

    /// Returns the memory of a request.
    pub fn data(&self, tag: u32) -> &[u8] {
        &self.buffers[tag as usize]
    }

    /// Closes the queue with requests in flight, and returns the memory of one of them.
    pub fn close(self, tag: u32) -> Vec<u8> {
        let Self { mut channel, mut buffers, .. } = self;
        channel.kick();
        drop(channel);
        buffers.swap_remove(tag as usize).to_vec()
    }

    /// Waits for a completion.
    pub fn next(&mut self) -> Completion {
        loop {
            if let Some(completion) = self.poll() {
                return completion;
            }
            self.reactor.sleep(|| self.channel.next_look());
        }
    }

    /// Returns a completion, if there is one.
    pub fn poll(&mut self) -> Option<Completion> {
        if self.done.is_empty() {
            self.channel.kick();
            self.channel.reap(&mut self.done);
        }
        let completion = self.done.pop()?;
        self.in_flight -= 1;
        Some(completion)
    }

    /// Carries out one request.
    pub fn run(&mut self, op: Op, stamp: u8) -> Outcome {
        assert_eq!(self.in_flight, 0);
        self.submit(op, stamp);
        self.next().outcome
    }

    /// Returns the memory of a request.
    pub fn memory(&self, tag: u32) -> &[u8] {
        &self.buffers[tag as usize]
    }
}

pub fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}
