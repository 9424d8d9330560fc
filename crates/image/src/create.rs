//! The doors into this crate: making a new image, opening an existing one, and looking at one that
//! somebody else may have open.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use flowstone_block::{AlignedBuf, Error, Result, SectorCount};
use flowstone_fileio::{Access, BlockingFile, FileIo, FileOffset, OpenOptions, create_sparse};

use crate::log::{self, LogImage, LogInfo, LogOptions};
use crate::raw::RawImage;
use crate::{DiscardMode, Format, Image, Space};

/// How to open an image.
#[derive(Clone, Copy, Debug)]
pub struct ImageOptions {
    /// How to open its host file.
    pub file: OpenOptions,
    /// What discards do.
    pub discard: DiscardMode,
}

/// Makes a new, empty image of `bytes` bytes. `options` are for log images.
pub fn create(path: &Path, format: Format, bytes: u64, options: LogOptions) -> Result<()> {
    let name = format!("create {}", path.display());
    let capacity = valid_capacity(bytes)
        .map_err(|why| Error::invalid(name.clone(), why, "give a --size such as 8G or 512M"))?;
    match format {
        Format::Raw if options != LogOptions::default() => Err(Error::invalid(
            name,
            "a raw image has no segments, reserve or streams",
            "leave these options out, or use --format log",
        )),
        Format::Raw => create_sparse(path, capacity.bytes()),
        Format::Log => create_log(&name, path, capacity, options),
    }
}

fn create_log(name: &str, path: &Path, capacity: SectorCount, options: LogOptions) -> Result<()> {
    let on_device = is_block_device(path);
    if !on_device {
        create_sparse(path, log::SUPERBLOCK_AREA_BYTES)?;
    }
    let made = OpenOptions::new(Access::Write).open(path).and_then(|file| {
        if on_device {
            check_blank(name, &file)?;
        }
        log::create(name, &file, capacity, options)
    });
    if made.is_err() && !on_device {
        // What we made and could not finish must not look like an image.
        let _ = std::fs::remove_file(path);
    }
    made
}

pub(crate) fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// A device may hold something that is dear to somebody.
fn check_blank(name: &str, device: &dyn FileIo) -> Result<()> {
    let host = |error: io::Error| Error::host(name, error, "check the device");
    let mut start = AlignedBuf::zeroed(log::SUPERBLOCK_AREA_BYTES as usize);
    let mut reader = BlockingFile::new(device).map_err(host)?;
    reader.read(FileOffset::new(0), &mut start).map_err(|errno| host(errno.into()))?;
    if start.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let why = "there is something at the start of the device";
    Err(Error::invalid(name, why, "empty the device first (blkdiscard or wipefs)"))
}

/// What can be seen of an image without opening it.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageInfo {
    /// How much room it takes.
    pub space: Space,
    /// More about a log image.
    pub log: Option<LogInfo>,
}

/// Looks at the image at `path`, which somebody else may be writing.
pub fn inspect(path: &Path, format: Format) -> Result<ImageInfo> {
    let name = path.display().to_string();
    let host = |error: io::Error| Error::host(name.clone(), error, "check the host's file system");
    let file = Box::new(OpenOptions::new(Access::Inspect).open(path)?);
    match format {
        Format::Raw => {
            let image = RawImage::open(path, file, DiscardMode::Deallocate, Access::Inspect)?;
            Ok(ImageInfo { space: image.space().map_err(host)?, log: None })
        }
        Format::Log => {
            let log = log::inspect(&name, &*file)?;
            let allocated_bytes = file.allocated_bytes().map_err(host)?;
            let space = Space { virtual_bytes: log.virtual_bytes, allocated_bytes };
            Ok(ImageInfo { space, log: Some(log) })
        }
    }
}

/// Opens the image at `path`; [`inspect`] is for those that somebody else may be writing.
pub fn open(path: &Path, format: Format, options: ImageOptions) -> Result<Box<dyn Image>> {
    let file = Box::new(options.file.open(path)?);
    match format {
        Format::Raw => {
            let image = RawImage::open(path, file, options.discard, options.file.access)?;
            Ok(Box::new(image))
        }
        Format::Log if options.file.access == Access::Inspect => Err(Error::invalid(
            path.display().to_string(),
            "what somebody may be writing cannot be read",
            "inspect it, or open it for reading",
        )),
        // It writes elsewhere anyway: space kept for a discarded block would serve nobody.
        Format::Log if options.discard == DiscardMode::Keep => Err(Error::invalid(
            path.display().to_string(),
            "a log image keeps no space for a discarded block, which it would write elsewhere",
            "use --discard deallocate or ignore, or a raw image",
        )),
        Format::Log => {
            let image = LogImage::open(path, file, options.discard, options.file.access)?;
            Ok(Box::new(image))
        }
    }
}

/// A disk's size from bytes, or why there is no such disk.
pub(crate) fn valid_capacity(bytes: u64) -> std::result::Result<SectorCount, &'static str> {
    // File offsets are signed 64-bit numbers (off_t).
    const BYTES_MAX: u64 = i64::MAX as u64;
    match SectorCount::from_bytes(bytes) {
        Some(capacity) if capacity.get() == 0 => Err("its size is 0"),
        Some(_) if bytes > BYTES_MAX => Err("no host file can be that large"),
        Some(capacity) => Ok(capacity),
        None => Err("its size is not a multiple of 512 bytes"),
    }
}
