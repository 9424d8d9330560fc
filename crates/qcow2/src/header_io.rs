//! Reads and writes the header and the L1 table.

use std::io;

use flowstone_block::{AlignedBuf, Errno, Error, Result};
use flowstone_fileio::{BlockingFile, FileIo, FileOffset};
use flowstone_image::Flaw;

use super::entry;
use super::header::{HEADER_BYTES_MAX, Header};
use super::map::from_bytes;
use super::shape::sector_bytes;
use super::survey::SurveyError;

/// Reads the header of an image.
pub fn read_header(name: &str, file: &dyn FileIo) -> Result<Header> {
    let host = |error: io::Error| Error::host(name, error, "check the host's file system");
    // Direct I/O cannot read the partial last sector of a short file; the header does not extend
    // into it.
    let sector_bytes = sector_bytes(file) as u64;
    let bytes = (file.size().map_err(host)? / sector_bytes * sector_bytes) as usize;
    let bytes = bytes.min(HEADER_BYTES_MAX);
    let mut start = AlignedBuf::zeroed(bytes);
    let mut reader = BlockingFile::new(file).map_err(host)?;
    reader.read(FileOffset::new(0), &mut start).map_err(|errno| host(errno.into()))?;
    Header::decode(&start).map_err(|error| error.explain(name))
}

/// Reads the L1 table, and checks that its entries are valid table offsets.
pub fn read_l1(
    reader: &mut BlockingFile,
    header: &Header,
    sector_bytes: usize,
    file_bytes: u64,
) -> std::result::Result<Vec<u64>, SurveyError> {
    let entries = header.l1_entries as usize;
    if header.l1_offset + header.l1_entries * 8 > file_bytes {
        let flaw = Flaw::new("the file ends before its L1 table does");
        return Err(SurveyError::Damaged(flaw.at(FileOffset::new(header.l1_offset))));
    }
    let end = (header.l1_offset + header.l1_entries * 8).next_multiple_of(sector_bytes as u64);
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
            let place = FileOffset::new(header.l1_offset + index as u64 * 8);
            return Err(SurveyError::Damaged(Flaw::new(why).at(place)));
        }
    }
    Ok(l1)
}

/// Removes the mark and unknown autoclear features.
pub fn clear_mark(file: &dyn FileIo, header: &mut Header) -> std::result::Result<(), Errno> {
    let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    header.autoclear = 0;
    let mut writer = BlockingFile::new(file).map_err(failed)?;
    write_autoclear(&mut writer, sector_bytes(file), header).map(drop)
}

/// Writes the mark, or none, and clears unknown autoclear features. Returns the first sector as
/// written.
pub fn write_autoclear(
    file: &mut BlockingFile,
    sector_bytes: usize,
    header: &Header,
) -> std::result::Result<Vec<u8>, Errno> {
    let mut sector = AlignedBuf::zeroed(sector_bytes);
    file.read(FileOffset::new(0), &mut sector)?;
    let before = sector.to_vec();
    header.update(&mut sector);
    if sector[..] != before[..] {
        file.write(FileOffset::new(0), &mut sector)?;
        file.sync()?;
    }
    Ok(sector.to_vec())
}
