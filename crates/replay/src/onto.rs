//! An image on a file or a device of this host, accessed through the daemon's I/O engines.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use flowstone_block::{AlignedBuf, Reactor, format_size};
use flowstone_fileio::{
    Access, BlockingFile, FileIo, FileOffset, FileOp, HostFile, OpenOptions, create_sparse,
};
use flowstone_formats::{create_in, open};
use flowstone_image::Format;

use crate::guest::Guest;
use crate::medium::{Counted, Medium};
use crate::options::{Onto, ReplayOptions};
use crate::stack::Stack;

/// Bytes that are zero at the start of an empty device: file systems, partition tables and images
/// all have something there.
const LOOKED_AT_BYTES: u64 = 1 << 20;

/// An image on a file or a device of this host.
pub struct Host {
    // Its queue is dropped first.
    guest: [RefCell<Guest>; 1],
    stack: Stack,
    reactor: Reactor,
}

impl Host {
    /// Makes a new image of a disk of this size, and a guest with at most `slots` requests in
    /// flight.
    pub fn new(
        options: &ReplayOptions,
        onto: &Onto,
        disk_bytes: u64,
        slots: usize,
    ) -> Result<Self> {
        make(onto, options, disk_bytes)?;
        let image = open(&onto.path, options.format, options.image.clone())?;
        let stack = Stack::new(image, options.cache, options.seed, Instant::now())?;
        let (channel, context) = stack.queue(slots)?;
        let guest = [RefCell::new(Guest::new(channel, stack.image().geometry(), slots))];
        Ok(Self { guest, stack, reactor: context.reactor })
    }
}

impl Medium for Host {
    fn guests(&self) -> &[RefCell<Guest>] {
        &self.guest
    }

    fn now(&self) -> Instant {
        Instant::now()
    }

    fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        self.stack.tell_time(now);
        let mut guest = self.guest[0].borrow_mut();
        if !guest.turn(now) {
            self.reactor.sleep(|| guest.next_look());
        }
        Ok(())
    }

    fn count(&self) -> Counted {
        Counted {
            at: Instant::now(),
            host_bytes: written_by_us(),
            punches: self.stack.image().discards().punches,
            drive: None,
            hits: self.stack.hits(),
        }
    }
}

/// Makes the image. A mounted or used target is refused by its lock.
fn make(onto: &Onto, options: &ReplayOptions, disk_bytes: u64) -> Result<()> {
    let path = &onto.path;
    // Checked first: existing content must not be lost for an image that is impossible.
    let name = path.display().to_string();
    options.create.check(&name, options.format)?;
    options.image.check(&name, options.format)?;
    if options.format == Format::Log {
        options.create.log.file_bytes(&name, disk_bytes)?;
    }
    let is_device = fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    ensure!(
        !is_device || options.format != Format::Qcow2,
        "{name} is a block device, where no qcow2 image is made; give a file, or --format raw or log"
    );
    let is_new = fs::symlink_metadata(path).is_err();
    if is_new {
        create_sparse(path, 0)?;
    }
    let made = make_in(onto, options, disk_bytes);
    if made.is_err() && is_new {
        // A file that we created and could not complete must not look like an image.
        let _ = fs::remove_file(path);
    }
    made
}

fn make_in(onto: &Onto, options: &ReplayOptions, disk_bytes: u64) -> Result<()> {
    let path = &onto.path;
    let file = OpenOptions::new(Access::Write).open(path)?;
    let name = path.display();
    if let Some(device) = loop_device_of(path) {
        bail!("{name} is what {device} shows; detach it first (losetup -d)");
    }
    let is_device = fs::metadata(path)?.file_type().is_block_device();
    let is_empty = if is_device { is_blank(&file)? } else { file.size()? == 0 };
    ensure!(
        is_empty || onto.overwrite,
        "{name} is not empty; give another --onto, or --overwrite if all that is there may be lost"
    );
    if is_device {
        let bytes = file.size()?;
        ensure!(
            bytes >= disk_bytes,
            "{name} has {}, less than the disk's {}",
            format_size(bytes),
            format_size(disk_bytes)
        );
        empty(&file, bytes).with_context(|| format!("empty {name}"))?;
        // The device is a raw image by itself, of its own size.
        if options.format == Format::Raw {
            return Ok(());
        }
    } else {
        file.set_size(0)?;
    }
    create_in(&name.to_string(), &file, options.format, disk_bytes, &options.create)?;
    Ok(())
}

fn is_blank(device: &HostFile) -> Result<bool> {
    let mut start = AlignedBuf::zeroed(LOOKED_AT_BYTES.min(device.size()?) as usize);
    let read = BlockingFile::new(device)?.read(FileOffset::new(0), &mut start);
    read.map_err(std::io::Error::from)?;
    Ok(start.iter().all(|byte| *byte == 0))
}

/// Discards the whole device, and overwrites its start, so that it is no image any more.
fn empty(device: &HostFile, bytes: u64) -> Result<()> {
    let mut file = BlockingFile::new(device)?;
    let all = FileOp::Discard { offset: FileOffset::new(0), bytes };
    let start = FileOp::Zero { offset: FileOffset::new(0), bytes: LOOKED_AT_BYTES.min(bytes) };
    for op in [all, start] {
        file.run(op).map_err(std::io::Error::from)?;
    }
    Ok(())
}

/// Returns the loop device backed by a file, of which no lock tells. The file may have other names.
fn loop_device_of(path: &Path) -> Option<String> {
    let identity = |path: &Path| {
        let it = fs::metadata(path).ok()?;
        let is_device = it.file_type().is_block_device();
        Some(if is_device { (it.rdev(), None) } else { (it.dev(), Some(it.ino())) })
    };
    let ours = identity(path)?;
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let shown = |device: &fs::DirEntry| {
        let file = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        Some(identity(Path::new(file.trim_end()))? == ours)
    };
    let found = devices.into_iter().find(|device| shown(device) == Some(true))?;
    Some(format!("/dev/{}", found.file_name().display()))
}

/// Returns the bytes that this process has sent to storage, by the kernel's count (proc(5)); 0 if
/// there is no storage, as on tmpfs.
fn written_by_us() -> Option<u64> {
    let counts = fs::read_to_string("/proc/self/io").ok()?;
    let written = counts.lines().find_map(|line| line.strip_prefix("write_bytes: "))?;
    written.parse().ok()
}
