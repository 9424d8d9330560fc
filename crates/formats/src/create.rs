//! Entry points of this crate: create a new image, open an existing one, and inspect one that
//! another process may have open.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use flowstone_block::{AlignedBuf, Error, Result, SectorCount};
use flowstone_fileio::{
    Access, BlockingFile, DirectChoice, FileIo, FileOffset, LockPatience, OpenOptions,
    create_sparse,
};
use tracing::warn;

use flowstone_image::{DiscardMode, Format, Image, Space, Upkeep, valid_capacity};
use flowstone_log::{self as log, LogImage, LogInfo, LogOptions};
use flowstone_log_format::SUPERBLOCK_AREA_BYTES;
use flowstone_qcow2::{
    self as qcow2, Backing, Opening, Place, Qcow2Image, Qcow2Info, Qcow2Options,
};
use flowstone_raw::RawImage;

use crate::backing::locate;
use crate::options::ImageOptions;

/// Options for creating an image, by format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// For log images.
    pub log: LogOptions,
    /// For qcow2 images.
    pub qcow2: Qcow2Options,
}

impl CreateOptions {
    /// Refuses options that belong to another format.
    pub fn check(&self, name: &str, format: Format) -> Result<()> {
        let others: [(bool, &str, &'static str); 2] = [
            (
                format != Format::Log && self.log != LogOptions::default(),
                "has no segments, reserve or streams",
                "leave these options out, or use --format log",
            ),
            (
                format != Format::Qcow2 && self.qcow2 != Qcow2Options::default(),
                "has no clusters, preallocation or backing file",
                "leave these options out, or use --format qcow2",
            ),
        ];
        match others.into_iter().find(|(given, ..)| *given) {
            Some((_, why, advice)) => {
                Err(Error::invalid(name, format!("a {format} image {why}"), advice))
            }
            None => Ok(()),
        }
    }
}

/// Creates a new, empty image of `bytes` bytes. Waits up to `lock_patience` for its lock.
pub fn create(
    path: &Path,
    format: Format,
    bytes: u64,
    options: &CreateOptions,
    lock_patience: LockPatience,
) -> Result<Option<String>> {
    let name = format!("create {}", path.display());
    let capacity = size_of_new(&name, format, bytes, options)?;
    let bytes_before = match format {
        Format::Raw => return create_sparse(path, capacity.bytes()).map(|()| None),
        Format::Qcow2 => 0,
        Format::Log => SUPERBLOCK_AREA_BYTES,
    };
    if let Some(backing) = &options.qcow2.backing {
        check_backing(&name, path, backing)?;
    }
    let on_device = format == Format::Log && is_block_device(path);
    if !on_device {
        create_sparse(path, bytes_before)?;
    }
    let open = OpenOptions { lock_patience, ..OpenOptions::new(Access::Write) };
    let made = open.open(path).and_then(|file| {
        if on_device {
            check_blank(&name, &file)?;
        }
        create_in(&name, &file, format, bytes, options)
    });
    if made.is_err() && !on_device {
        // A partly created file must not look like an image.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// Returns the size of a new image, if it can have that size and these options.
fn size_of_new(
    name: &str,
    format: Format,
    bytes: u64,
    options: &CreateOptions,
) -> Result<SectorCount> {
    let capacity = valid_capacity(bytes)
        .map_err(|why| Error::invalid(name, why, "give a --size such as 8G or 512M"))?;
    options.check(name, format)?;
    Ok(capacity)
}

/// Opens the backing file, so that an unusable one is an error now and not at the first read.
fn check_backing(name: &str, path: &Path, backing: &Backing) -> Result<()> {
    if !matches!(backing.format, Format::Raw | Format::Qcow2) {
        let why = format!("a {} image cannot be a backing file", backing.format);
        return Err(Error::unsupported(name, why, "use a raw or a qcow2 backing file"));
    }
    let target = path.parent().unwrap_or(Path::new("")).join(&backing.path);
    inspect(&target, backing.format).map(|_| ())
}

pub(crate) fn is_block_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Refuses a device whose superblock area is not zero: it may hold data.
fn check_blank(name: &str, device: &dyn FileIo) -> Result<()> {
    let host = |error: io::Error| Error::host(name, error, "check the device");
    let mut start = AlignedBuf::zeroed(SUPERBLOCK_AREA_BYTES as usize);
    let mut reader = BlockingFile::new(device).map_err(host)?;
    reader.read(FileOffset::new(0), &mut start).map_err(|errno| host(errno.into()))?;
    if start.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let why = "there is something at the start of the device";
    Err(Error::invalid(name, why, "empty the device first (blkdiscard or wipefs)"))
}

/// Makes a device empty for [`create`], after an image on it that is not whole. Does nothing to a
/// file.
pub fn blank_device(path: &Path) -> Result<()> {
    if !is_block_device(path) {
        return Ok(());
    }
    let host = |error: io::Error| {
        Error::host(format!("empty {}", path.display()), error, "check the device")
    };
    let device = OpenOptions::new(Access::Write).open(path)?;
    let mut start = AlignedBuf::zeroed(SUPERBLOCK_AREA_BYTES as usize);
    let mut writer = BlockingFile::new(&device).map_err(host)?;
    let written = writer.write(FileOffset::new(0), &mut start);
    written.and_then(|_| writer.sync()).map(drop).map_err(|errno| host(errno.into()))
}

/// Information about an image that is available without opening it.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageInfo {
    /// Space that the image takes.
    pub space: Space,
    /// Details of a log image.
    pub log: Option<LogInfo>,
    /// Details of a qcow2 image.
    pub qcow2: Option<Qcow2Info>,
}

/// Inspects the image at `path`, which another process may be writing.
pub fn inspect(path: &Path, format: Format) -> Result<ImageInfo> {
    let name = path.display().to_string();
    let host = |error: io::Error| Error::host(name.clone(), error, "check the host's file system");
    let file = Box::new(OpenOptions::new(Access::Inspect).open(path)?);
    match format {
        Format::Raw => {
            let image = RawImage::open(path, file, DiscardMode::Deallocate, Access::Inspect)?;
            Ok(ImageInfo { space: image.space().map_err(host)?, log: None, qcow2: None })
        }
        Format::Log => {
            let log = log::inspect(&name, &*file)?;
            let allocated_bytes = file.allocated_bytes().map_err(host)?;
            let used_bytes = u64::from(log.segments_used - 1) * log.segment_bytes;
            let space = Space {
                virtual_bytes: log.virtual_bytes,
                live_bytes: Some(log.live_bytes),
                allocated_bytes,
                dead_bytes: Some(used_bytes.saturating_sub(log.live_bytes)),
            };
            Ok(ImageInfo { space, log: Some(log), qcow2: None })
        }
        Format::Qcow2 => {
            let qcow2 = qcow2::inspect(&name, &*file)?;
            let allocated_bytes = file.allocated_bytes().map_err(host)?;
            let Qcow2Info { virtual_bytes, live_bytes, .. } = qcow2;
            let space = Space { virtual_bytes, live_bytes, allocated_bytes, dead_bytes: None };
            Ok(ImageInfo { space, log: None, qcow2: Some(qcow2) })
        }
    }
}

/// Opens the image at `path`; [`inspect`] is for images that another process may be writing.
pub fn open(path: &Path, format: Format, options: ImageOptions) -> Result<Box<dyn Image>> {
    let name = path.display().to_string();
    options.check(&name, format)?;
    let file = (options.opener)(path, file_options(path, format, options.file))?;
    let file = options.wrapper.wrap(file);
    if format != Format::Raw && options.file.access == Access::Inspect {
        let why = "an image that may be written meanwhile cannot be read";
        return Err(Error::invalid(name, why, "inspect it, or open it for reading"));
    }
    match format {
        Format::Raw => {
            if options.args.discard == DiscardMode::Keep {
                check_keeps(path, &*file)?;
            }
            let image = RawImage::open(path, file, options.args.discard, options.file.access)?;
            Ok(Box::new(image))
        }
        Format::Log => {
            let access = options.file.access;
            let (discard, streams) = (options.args.discard, options.args.streams);
            let progress = Some(&options.progress);
            let image = LogImage::open(path, file, discard, access, streams, progress)?;
            image.set_upkeep(options.upkeep());
            Ok(Box::new(image))
        }
        Format::Qcow2 => {
            let header = qcow2::read_header(&name, &*file)?;
            let backing = header.backing.as_ref().map(|backing| {
                let (target, format, below) = locate(path, backing, &options)?;
                open(&target, format, below)
            });
            let backing = backing.transpose()?;
            let (access, discard) = (options.file.access, options.args.discard);
            let memory = options.has_redo.then(|| remember(path, &*file, access)).flatten();
            let progress = options.progress;
            let opening = Opening { backing, discard, access, memory, progress };
            Ok(Box::new(Qcow2Image::open(path, file, opening)?))
        }
    }
}

/// Creates a new, empty image of `bytes` bytes in an open, empty file. Returns a warning, if there
/// is one.
pub fn create_in(
    name: &str,
    file: &dyn FileIo,
    format: Format,
    bytes: u64,
    options: &CreateOptions,
) -> Result<Option<String>> {
    let capacity = size_of_new(name, format, bytes, options)?;
    match format {
        Format::Raw => file
            .set_size(capacity.bytes())
            .map(|()| None)
            .map_err(|error| Error::host(name, error, "check the host's file system")),
        Format::Qcow2 => qcow2::create(name, file, capacity, &options.qcow2).map(|()| None),
        Format::Log => log::create(name, file, capacity, options.log),
    }
}

/// Opens an image in an open file, for writing. No thread is started: the caller runs the upkeep.
pub fn open_stepped(
    name: &str,
    file: Box<dyn FileIo>,
    format: Format,
    options: &ImageOptions,
) -> Result<(Box<dyn Image>, Box<dyn Upkeep>)> {
    options.check(name, format)?;
    let discard = options.args.discard;
    match format {
        Format::Raw => {
            let image = RawImage::open(Path::new(name), file, discard, Access::Write)?;
            let upkeep = image.upkeep();
            Ok((Box::new(image), upkeep))
        }
        Format::Log => {
            let (image, upkeep) =
                LogImage::open_stepped(name.into(), file, discard, options.args.streams)?;
            image.set_upkeep(options.upkeep());
            Ok((Box::new(image), Box::new(upkeep)))
        }
        Format::Qcow2 => {
            let (image, upkeep) = Qcow2Image::open_stepped(Path::new(name), file, discard)?;
            Ok((Box::new(image), Box::new(upkeep)))
        }
    }
}

/// Refuses a copy-on-write host file system: space kept for an image must guarantee that writes
/// never meet a full host.
fn check_keeps(path: &Path, file: &dyn FileIo) -> Result<()> {
    let name = path.display().to_string();
    let found = file
        .copies_on_write()
        .map_err(|error| Error::host(&name, error, "check the host's file system"))?;
    match found {
        Some(system) => Err(Error::unsupported(
            name,
            format!(
                "{system} writes data elsewhere each time, so that space kept for it is no use"
            ),
            "use --discard deallocate, or put the image on ext4 or XFS",
        )),
        None => Ok(()),
    }
}

/// Returns where changes of the map are kept so that they survive the daemon; an image can be
/// served without.
fn remember<'a>(path: &'a Path, file: &dyn FileIo, access: Access) -> Option<Place<'a>> {
    // Redo records would name data that was lost with the process.
    if !file.survives_a_kill() {
        return None;
    }
    if !is_block_device(path) {
        return Some(Place::of(path));
    }
    if access == Access::Write {
        warn!(
            "{}: a block device: if the daemon is killed, it forgets writes that were not flushed",
            path.display()
        );
    }
    None
}

/// The last sector of a qcow2 file that another program has written may be partial, and direct I/O
/// could not read it. (A writer of the image pads it first.)
fn file_options(path: &Path, format: Format, options: OpenOptions) -> OpenOptions {
    let is_odd = || std::fs::metadata(path).is_ok_and(|file| !file.len().is_multiple_of(4096));
    if format == Format::Qcow2 && options.access != Access::Write && is_odd() {
        return OpenOptions { direct: DirectChoice::Off, ..options };
    }
    options
}
