//! Examination of an image before it is opened, and the length of its file for that.

use std::io;

use flowstone_block::{Errno, mutated};
use flowstone_fileio::{BlockingFile, FileIo};

use super::header::Header;
use super::header_io::read_l1;
use super::map::Map;
use super::meta::Meta;
use super::redo::RedoRecord;
use super::refcounts::Refcounts;
use super::replay;
use super::shape::{Shape, sector_bytes};
use super::space::Space;
use super::survey::{Survey, SurveyError, Surveyor};

/// Length of the file. The last cluster may be partial until the image is opened for writing; if
/// the image is refused, the file gets its old length back.
pub struct Length {
    before: u64,
    pub whole: u64,
}

impl Length {
    /// Extends the file to whole clusters, if the image is to be written.
    pub fn make_whole(file: &dyn FileIo, header: &Header, readonly: bool) -> io::Result<Self> {
        let before = file.size()?;
        let whole = match readonly {
            true => before,
            false => before.next_multiple_of(header.shape.cluster_bytes()),
        };
        if whole != before {
            file.set_size(whole)?;
        }
        Ok(Self { before, whole })
    }

    /// Restores the length, because the image is refused.
    pub fn restore(&self, file: &dyn FileIo) {
        let is_longer = self.whole != self.before;
        let is_longer = mutated("qcow2.open.lengthens-what-it-refuses", is_longer, false);
        if is_longer {
            // The added part is a hole: it does no harm if it stays.
            let _ = file.set_size(self.before);
        }
    }
}

/// The L1 table; and, before the image is written, the clusters in use and the free ones.
pub struct Looked {
    l1: Vec<u64>,
    pub survey: Survey,
    pub refcounts: Option<Refcounts>,
}

impl Looked {
    /// Returns the state that all queues share.
    pub fn meta(
        &mut self,
        shape: Shape,
        file: &dyn FileIo,
        bytes: u64,
        backing_bytes: u64,
    ) -> Meta {
        let map = Map::new(shape, std::mem::take(&mut self.l1), sector_bytes(file));
        let mut meta = Meta::new(map, Space::new(self.survey.next), bytes, backing_bytes);
        meta.tables = std::mem::take(&mut self.survey.tables);
        meta.live = self.survey.live;
        meta
    }
}

/// Examines an image that is to be opened.
pub fn look_through(
    file: &dyn FileIo,
    header: &Header,
    file_bytes: u64,
    changes: &[RedoRecord],
    readonly: bool,
) -> Result<Looked, SurveyError> {
    let failed = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let (mut reader, sector) = (BlockingFile::new(file).map_err(failed)?, sector_bytes(file));
    let l1 = read_l1(&mut reader, header, sector, file_bytes)?;
    if readonly {
        return Ok(Looked { l1, survey: Survey::default(), refcounts: None });
    }
    let (offset, clusters) = (header.refcount_table_offset, header.refcount_table_clusters);
    let mut refcounts = Refcounts::load(&mut reader, header.shape, offset, clusters, sector)?;
    let surveyor = Surveyor {
        file: &mut reader,
        shape: header.shape,
        file_bytes,
        l1_offset: header.l1_offset,
        l1: &l1,
        refcounts: &mut refcounts,
        promised: &replay::named(header.shape, changes),
    };
    let survey = surveyor.run()?;
    Ok(Looked { l1, survey, refcounts: Some(refcounts) })
}
