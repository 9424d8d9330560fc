//! Inspects an image that a daemon may be writing.

use std::io;

use flowstone_block::{AlignedBuf, Errno, Result};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset};
use serde::Serialize;

use super::entry::{self, Mapping};
use super::header::Header;
use super::header_io::{read_header, read_l1};
use super::map::from_bytes;
use super::shape::sector_bytes;
use super::survey::{SurveyError, TABLES_BYTES_MAX};

/// Information about a qcow2 image: its JSON is stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Qcow2Info {
    /// Size of the disk in bytes.
    #[serde(skip)]
    pub virtual_bytes: u64,
    /// Bytes of the disk for which the image itself has data, by the tables on the medium; `None`
    /// if there are too many tables, or they cannot be read.
    #[serde(skip)]
    pub live_bytes: Option<u64>,
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Name of the backing file, as stored in the image.
    pub backing: Option<String>,
    /// Format of the backing file, if the image states it.
    pub backing_format: Option<String>,
    /// Number of internal snapshots, which are not served.
    pub snapshots: u32,
    /// Whether some software has marked the image as damaged.
    pub corrupt: bool,
}

/// Reads the header and the tables; follows no name stored in the image.
pub fn inspect(name: &str, file: &dyn FileIo) -> Result<Qcow2Info> {
    let header = read_header(name, file)?;
    let live = live_clusters(file, &header).ok().flatten();
    let live_bytes = live.map(|live| live << header.shape.cluster_bits);
    let (backing, backing_format) =
        header.backing.map_or((None, None), |backing| (Some(backing.name), backing.format));
    Ok(Qcow2Info {
        virtual_bytes: header.disk_bytes,
        live_bytes: live_bytes.map(|live| live.min(header.disk_bytes)),
        cluster_bytes: header.shape.cluster_bytes(),
        version: header.shape.version,
        backing,
        backing_format,
        snapshots: header.snapshots,
        corrupt: header.corrupt,
    })
}

fn live_clusters(
    file: &dyn FileIo,
    header: &Header,
) -> std::result::Result<Option<u64>, SurveyError> {
    let shape = header.shape;
    let failed =
        |error: io::Error| SurveyError::Host(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let mut reader = BlockingFile::new(file).map_err(failed)?;
    let l1 = read_l1(&mut reader, header, sector_bytes(file), file.size().map_err(failed)?)?;
    let homes = l1.iter().filter_map(|raw| entry::cluster(shape, *raw).ok().flatten());
    if homes.clone().count() as u64 * shape.cluster_bytes() > TABLES_BYTES_MAX {
        return Ok(None);
    }
    let mut table = AlignedBuf::zeroed(shape.cluster_bytes() as usize);
    let mut live = 0;
    for home in homes {
        reader.read(FileOffset::new(shape.offset(home)), &mut table)?;
        let entries = from_bytes(&table);
        let mappings = entries.iter().map(|raw| entry::decode(shape, *raw));
        live += mappings.filter(|it| it.as_ref().is_ok_and(Mapping::holds_data)).count() as u64;
    }
    Ok(Some(live))
}
