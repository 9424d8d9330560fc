//! The maintenance worker: the one thread that writes metadata. It commits changes of the map at a
//! flush, and a second after a change at the latest; it grows the file ahead of need; and it
//! deallocates unused clusters on the host.

mod commit;
mod compact;
mod header;
mod resize;
mod space;
mod turns;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, LogBudget, Outcome, mutated};
use flowstone_fileio::BlockingFile;
use flowstone_image::runtime::inbox::ReplySender;
use flowstone_image::runtime::pace::Pace;
use tracing::warn;

use super::core::Core;
use super::header::Header;
use super::header_io::write_autoclear;
use super::redo::Redo;
use super::refcounts::Refcounts;
use super::shape::{HostCluster, sector_bytes};

/// Time after which changes are committed without a flush.
const PATIENCE: Duration = Duration::from_secs(1);

/// The maintenance worker of an image.
pub struct Maintenance {
    core: Arc<Core>,
    file: BlockingFile,
    refcounts: Refcounts,
    /// Header as on the medium.
    header: Header,
    /// First sector of the file, with the header.
    first_sector: Vec<u8>,
    /// Work of the next commit, besides the changes of the map.
    pending: Pending,
    /// When changes are committed without a flush.
    due: Option<Instant>,
    /// End of its sleep if no work comes.
    deadline: Option<Instant>,
    /// Whether it must end.
    is_stopping: bool,
    /// Requests without room, and when the first of them asked.
    askers: Vec<ReplySender>,
    asked_at: Option<Instant>,
    /// The last commit failed: another one is made for a flush, or when it is due.
    commit_failed: bool,
    /// Clusters without users, by the epoch in which the map dropped them.
    limbo: VecDeque<(u64, Vec<Range<u64>>)>,
    /// Clusters without users, to be punched; sorted, merged. On a device that does not punch they
    /// are zeroed instead, once they are needed.
    garbage: Vec<Range<u64>>,
    /// Clusters that could not be punched, and when that failed: retried after a while.
    refused: Vec<Range<u64>>,
    refused_at: Option<Instant>,
    pace: Pace,
    /// No punch before this time, to leave the host to guests.
    rests_until: Option<Instant>,
    /// Clusters without users that have refcounts.
    leaks: Vec<Range<u64>>,
    /// Whether all tables were surveyed, so that `compact` can sort the image as a whole.
    surveyed: bool,
    log: LogBudget,
}

/// Work that remains even if a commit fails.
#[derive(Default)]
struct Pending {
    /// Clusters in use that have no refcount yet.
    taken: Vec<HostCluster>,
    /// References that the tables have given up.
    dropped: Vec<HostCluster>,
    /// Tables that are not on the medium yet.
    new_tables: BTreeSet<usize>,
    /// Entries of the L1 table that are not on the medium yet.
    l1_entries: BTreeSet<usize>,
    /// Refcounts or tables may not be durable yet that entries are about to name.
    unsynced: bool,
}

/// Initial state of the maintenance worker.
pub struct Knowledge {
    /// With the mark of the session, which is not on the medium yet.
    pub header: Header,
    pub redo: Option<Redo>,
    pub refcounts: Refcounts,
    /// Clusters that have had no user since before the image was opened.
    pub holes: Vec<Range<u64>>,
    /// Clusters without a user that have refcounts all the same.
    pub leaks: Vec<Range<u64>>,
    /// Whether all tables have been surveyed.
    pub surveyed: bool,
}

impl Maintenance {
    /// Marks the image as in use by a session that has this redo file; the last step of an open.
    pub fn new(core: Arc<Core>, knowledge: Knowledge) -> io::Result<Self> {
        let Knowledge { header, mut redo, refcounts, holes, leaks, surveyed } = knowledge;
        let mut file = BlockingFile::new(&*core.file)?;
        // The mark may reach the medium although it cannot be written.
        redo.iter_mut().for_each(Redo::keep);
        let first_sector = write_autoclear(&mut file, sector_bytes(&*core.file), &header)?;
        core.meta().redo = redo;
        Ok(Self {
            core,
            file,
            refcounts,
            header,
            first_sector,
            pending: Pending::default(),
            due: None,
            deadline: None,
            is_stopping: false,
            askers: Vec::new(),
            asked_at: None,
            commit_failed: false,
            limbo: VecDeque::from([(0, holes)]),
            garbage: Vec::new(),
            refused: Vec::new(),
            refused_at: None,
            pace: Pace::default(),
            rests_until: None,
            leaks,
            surveyed,
            log: LogBudget::default(),
        })
    }

    fn commit_for_all(&mut self) {
        self.due = None;
        self.core.commits.begin();
        let outcome = self.commit();
        self.core.commits.end(outcome);
        self.core.wakers.wake_all();
        self.commit_failed = outcome.is_err();
        // A commit that failed is retried without a flush, so that freed space goes back to the
        // host. One that has dropped clusters is followed by one that writes their refcounts: after
        // a kill they would be leaked.
        let owes = self.refcounts.is_changed();
        let owes = mutated("qcow2.commit.uncounts-with-the-next", owes, false);
        if (self.commit_failed || owes) && !self.core.has_failed() {
            self.due = Some(self.core.clock.now() + PATIENCE);
        }
    }

    /// Makes everything durable, removes clusters allocated ahead of need from the end of the file,
    /// and removes the redo file.
    fn close(&mut self) -> Outcome {
        if self.core.has_failed() {
            return Err(Errno::IO);
        }
        if self.core.meta().is_changed() || self.pending.is_some() || self.refcounts.owes() {
            self.commit()?;
        } else {
            let syncs = mutated("qcow2.close.syncs-changes-of-the-map-only", true, false);
            if syncs {
                // Data in clusters that were there before.
                self.sync()?;
            }
        }
        if self.core.file.discards_to_zeroes() {
            self.reclaim_all();
        }
        if self.refcounts.is_changed() {
            self.write_refcounts()?;
            self.sync()?;
        }
        let (end, used_end) = {
            let meta = self.core.meta();
            (meta.space.end(), meta.space.used_end())
        };
        if used_end < end {
            let bytes = used_end << self.core.shape.cluster_bits;
            match self.core.file.set_size(bytes) {
                // The size of a device is fixed.
                Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                    return Err(Errno::IO);
                }
                Ok(()) | Err(_) => {}
            }
        }
        let redo = self.core.meta().redo.take();
        if let Some(redo) = redo {
            self.write_header(Header { autoclear: 0, ..self.header.clone() })?;
            // Not needed any more; it does no harm if it stays.
            let _ = redo.remove();
        }
        Ok(())
    }

    /// Warns the operator, rate-limited: a host may be full, or refuse, as often as a guest likes.
    fn warn(&mut self, what: fmt::Arguments<'_>) {
        if let Some(unsaid) = self.log.spend() {
            warn!(unsaid, "{}: {what}", self.core.name);
        }
    }

    fn sync(&mut self) -> Outcome {
        let outcome = self.core.sync.run(&mut self.file);
        if let Err(errno) = outcome {
            self.core.fail(&format!("a sync of the image has failed: {errno}"));
        }
        if self.core.has_failed() { Err(Errno::IO) } else { outcome }
    }
}

impl Pending {
    fn is_some(&self) -> bool {
        !self.taken.is_empty() || !self.dropped.is_empty() || !self.l1_entries.is_empty()
    }
}
