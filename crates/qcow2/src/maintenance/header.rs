//! Changes of header fields: all in the first sector, which is written as a whole.

use flowstone_block::{AlignedBuf, Errno, Outcome, mutated};
use flowstone_fileio::FileOffset;
use tracing::warn;

use super::super::header::Header;
use super::super::redo::Redo;
use super::Maintenance;

impl Maintenance {
    /// Changes the header, durably. If that fails, the medium has the old or the new one, and
    /// `self.header` is the old one.
    pub(super) fn write_header(&mut self, header: Header) -> Outcome {
        self.write_first_sector(&header)?;
        self.sync()?;
        self.header = header;
        self.core.meta().header_in_doubt = false;
        Ok(())
    }

    /// Restores the header that a failed change left in doubt.
    pub(super) fn settle_header(&mut self) -> Outcome {
        let is_in_doubt = self.core.meta().header_in_doubt;
        let is_in_doubt = mutated("qcow2.commit.leaves-the-header-in-doubt", is_in_doubt, false);
        if !is_in_doubt {
            return Ok(());
        }
        self.write_header(self.header.clone())
    }

    /// A redo file that has lost a page is useless, and after a kill the image would be refused
    /// because of it. Without one it opens in the state of its last commit.
    pub(super) fn give_up_a_broken_redo_file(&mut self) -> Outcome {
        let is_broken = self.core.meta().redo.as_ref().is_some_and(Redo::is_broken);
        let is_broken = mutated("qcow2.redo.goes-on-with-a-broken-mapping", is_broken, false);
        if !is_broken {
            return Ok(());
        }
        self.write_header(Header { autoclear: 0, ..self.header.clone() })?;
        let redo = self.core.meta().redo.take();
        // Its name may belong to another file by now.
        let _ = redo.map(Redo::remove);
        warn!(
            "{}: its redo file has lost a page: if the daemon is killed, it forgets writes that were \
             not flushed, until the image is opened anew",
            self.core.name
        );
        Ok(())
    }

    /// Returns the first sector of the file, with this header.
    pub(super) fn first_sector(&self, header: &Header) -> Vec<u8> {
        let mut sector = self.first_sector.clone();
        header.update(&mut sector);
        sector
    }

    pub(super) fn write_first_sector(&mut self, header: &Header) -> Outcome {
        self.write_at(0, &self.first_sector(header))
    }

    /// Returns whether the file has the expected header. A failed commit may have written its mark
    /// there, which the next successful one has, too.
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
