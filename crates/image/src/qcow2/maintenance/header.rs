//! The fields of the header that change: all in its first sector, which is written as a whole.

use flowstone_block::{AlignedBuf, Errno, Outcome};
use flowstone_fileio::FileOffset;

use super::super::header::Header;
use super::Maintenance;

impl Maintenance {
    /// Changes the header, durably. If that fails, the medium has one of the two, and
    /// `self.header` is the old one.
    pub(super) fn write_header(&mut self, header: Header) -> Outcome {
        self.write_first_sector(&header)?;
        self.sync()?;
        self.header = header;
        Ok(())
    }

    /// The first sector of the file, with this header.
    pub(super) fn first_sector(&self, header: &Header) -> Vec<u8> {
        let mut sector = self.first_sector.clone();
        header.update(&mut sector);
        sector
    }

    pub(super) fn write_first_sector(&mut self, header: &Header) -> Outcome {
        self.write_at(0, &self.first_sector(header))
    }

    /// Whether the file has the header that it is to have. A commit that failed may have left its
    /// mark in there, which the next one that succeeds has, too.
    pub(super) fn has_header(&mut self) -> Result<bool, Errno> {
        let mut found = AlignedBuf::zeroed(self.first_sector.len());
        self.file.read(FileOffset::new(0), &mut found)?;
        let next_mark = self.core.meta().redo.as_ref().map(|redo| redo.mark().next().bits());
        let marks = [Some(self.header.autoclear), next_mark];
        Ok(marks.into_iter().flatten().any(|autoclear| {
            let header = Header { autoclear, ..self.header.clone() };
            found[..] == self.first_sector(&header)[..]
        }))
    }
}
