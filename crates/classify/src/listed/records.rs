//! Assembles records of the XFS log from writes: a write may have several, or the end of one,
//! because the guest has split it or the log wraps around in it.

use super::journal::Journal;
use super::xfs::{self, SECTOR};

/// An incomplete record.
struct Begun {
    journal: u16,
    /// The sector of the disk where it continues.
    next: u64,
    bytes: Vec<u8>,
    record_bytes: usize,
}

/// The one incomplete record of a disk, if any.
#[derive(Default)]
pub struct Records(Option<Begun>);

impl Records {
    /// Calls `visit` with each record that this write completes. `None` if the write is not
    /// readable, `visit` stops, or it contains a part of an unknown record.
    pub fn read(
        &mut self,
        (index, journal): (u16, &Journal),
        start: u64,
        write: &mut [u8],
        mut visit: impl FnMut(&mut [u8]) -> Option<()>,
    ) -> Option<()> {
        let end = start + (write.len() / SECTOR) as u64;
        let mut rest = write;
        let goes_on = |it: &mut Begun| it.journal == index && it.next == start;
        if let Some(mut begun) = self.0.take_if(goes_on)
            && !xfs::begins_record(rest)
        {
            let (more, behind) =
                rest.split_at_mut(rest.len().min(begun.record_bytes - begun.bytes.len()));
            begun.bytes.extend_from_slice(more);
            if begun.bytes.len() < begun.record_bytes {
                begun.next = journal.after(start + (more.len() / SECTOR) as u64);
                self.0 = Some(begun);
                return Some(());
            }
            visit(&mut begun.bytes)?;
            rest = behind;
        }
        while !rest.is_empty() {
            let record_bytes = xfs::record_bytes(rest)?;
            if record_bytes <= rest.len() {
                let (record, behind) = rest.split_at_mut(record_bytes);
                visit(record)?;
                rest = behind;
                continue;
            }
            // Two incomplete records at a time are not supported.
            let is_second = self.0.is_some();
            let next = journal.after(end);
            self.0 = Some(Begun { journal: index, next, bytes: rest.to_vec(), record_bytes });
            return (!is_second).then_some(());
        }
        Some(())
    }

    /// Drops the incomplete record.
    pub fn forget(&mut self) {
        self.0 = None;
    }
}
