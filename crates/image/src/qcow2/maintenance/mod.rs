//! The maintenance worker: the one thread that writes metadata. It commits what the map says at a
//! flush, and a second after a change at the latest; it grows the file ahead of need; and it gives
//! clusters that are not in use any more back to the host.

mod commit;
mod compact;
mod header;
mod resize;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{Errno, Outcome, mutant};
use flowstone_fileio::{BlockingFile, FileOffset, FileOp};
use tracing::warn;

use super::commits::Command;
use super::core::Core;
use super::header::Header;
use super::refcounts::Refcounts;
use super::shape::HostCluster;
use super::space::merge_runs;
use crate::runtime::pace::Pace;
use crate::runtime::wakers::QueueWaker;

/// How long changes wait for a flush before they are written anyway.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait for requests that may still use clusters which are free otherwise.
const LIMBO_PATIENCE: Duration = Duration::from_millis(20);

/// Clusters that wait to be punched take no more than this of the host, or one part in so many of
/// the disk, whichever is more.
const GARBAGE_BYTES_MIN: u64 = 64 << 20;
const GARBAGE_PART: u64 = 16;
/// What one call punches, or makes zero, at most: a flush may have to wait for it.
const PIECE_BYTES_MAX: u64 = 64 << 20;
/// How many pieces may fail before requests that wait for room fail.
const REFUSALS_MAX: u32 = 4;
/// How long it punches before it takes other work.
const TURN_MAX: Duration = Duration::from_millis(20);

/// The maintenance worker of an image.
pub struct Maintenance {
    core: Arc<Core>,
    file: BlockingFile,
    /// Ends its wait for a queue's sync.
    waker: Arc<QueueWaker>,
    refcounts: Refcounts,
    /// As on the medium.
    header: Header,
    /// The sector that it begins in.
    first_sector: Vec<u8>,
    /// What the next commit is to write, besides what the map has.
    pending: Pending,
    /// When changes are written without a flush.
    due: Option<Instant>,
    /// Clusters without users, by the generation in which the map dropped them.
    limbo: VecDeque<(u64, Vec<Range<u64>>)>,
    /// Clusters without users, to be punched; in order, merged. On a device that does not
    /// punch they are made zero, and that is put off until they are needed.
    garbage: Vec<Range<u64>>,
    /// Those that could not be punched, and since when: they are tried again after a while.
    refused: Vec<Range<u64>>,
    refused_at: Option<Instant>,
    pace: Pace,
    /// No punch before this, for the sake of guests.
    rests_until: Option<Instant>,
    /// Clusters without users whose refcounts say otherwise.
    leaks: Vec<Range<u64>>,
    /// Whether all that the map names is small enough to be put in order.
    surveyed: bool,
}

/// What remains to be done even if a commit fails.
#[derive(Default)]
struct Pending {
    /// Clusters in use that have no refcount yet.
    taken: Vec<HostCluster>,
    /// References that the tables give up.
    dropped: Vec<HostCluster>,
    /// Tables that are nowhere on the medium yet.
    new_tables: BTreeSet<usize>,
    /// Entries of the L1 table that are not on the medium yet.
    l1_entries: BTreeSet<usize>,
    /// Refcounts or tables that others are to name may not be durable yet.
    unsynced: bool,
}

/// What the maintenance worker begins with.
pub struct Knowledge {
    pub header: Header,
    pub first_sector: Vec<u8>,
    pub refcounts: Refcounts,
    /// Clusters that have had no user since before the image was opened.
    pub holes: Vec<Range<u64>>,
    /// Nor these, which have refcounts all the same.
    pub leaks: Vec<Range<u64>>,
    /// Whether all tables have been looked at.
    pub surveyed: bool,
}

impl Maintenance {
    pub fn new(core: Arc<Core>, knowledge: Knowledge) -> io::Result<Self> {
        let Knowledge { header, first_sector, refcounts, holes, leaks, surveyed } = knowledge;
        let file = BlockingFile::new(&*core.file)?;
        Ok(Self {
            core,
            waker: QueueWaker::new(file.reactor()),
            file,
            refcounts,
            header,
            first_sector,
            pending: Pending::default(),
            due: None,
            limbo: VecDeque::from([(0, holes)]),
            garbage: Vec::new(),
            refused: Vec::new(),
            refused_at: None,
            pace: Pace::default(),
            rests_until: None,
            leaks,
            surveyed,
        })
    }

    /// Works until told to stop.
    pub fn run(mut self) {
        self.reserve();
        if self.core.meta().is_changed() {
            // What a killed daemon has left.
            self.commit_for_all();
        }
        loop {
            self.reclaim_limbo();
            self.core.meta().dead = self.dead();
            let pending_work = self.core.commits.inbox.wait(self.deadline());
            if self.core.commits.is_touched() {
                self.due.get_or_insert_with(|| Instant::now() + PATIENCE);
            }
            if self.core.commits.take_lacks_room() {
                self.grow(self.core.room_step());
            }
            self.run_commands();
            if self.core.commits.is_wanted() || self.due.is_some_and(|due| due <= Instant::now()) {
                self.commit_for_all();
            }
            if pending_work.stop {
                break;
            }
        }
        // Requests that wait for room fail.
        self.core.commits.inbox.close();
        if let Err(errno) = self.close() {
            warn!("{}: could not be closed in order: {errno}; it may have leaks", self.core.name);
        }
    }

    fn run_commands(&mut self) {
        while let Some((command, reply)) = self.core.commits.inbox.next_command() {
            let outcome = match command {
                Command::MakeRoom => {
                    self.grow(self.core.room_step());
                    Ok(())
                }
                Command::Resize(capacity) => {
                    let resized = self.resize(capacity);
                    // The L1 table that is not in use any more is given back soon.
                    self.due.get_or_insert_with(|| Instant::now() + PATIENCE);
                    resized
                }
                Command::Compact => self.compact(),
            };
            reply.send(outcome);
        }
    }

    /// Until when to sleep if no work comes; for ever, if nothing has changed.
    fn deadline(&self) -> Option<Instant> {
        let limbo = (!self.limbo.is_empty()).then(|| Instant::now() + LIMBO_PATIENCE);
        let again = self.refused_at.map(|at| at + PATIENCE);
        [limbo, self.rests_until, self.due, again].into_iter().flatten().min()
    }

    fn commit_for_all(&mut self) {
        self.due = None;
        self.core.commits.begin();
        let outcome = self.commit();
        self.core.commits.end(outcome);
        self.core.wakers.wake_all();
        if outcome.is_err() && !self.core.has_failed() {
            // The commit is tried again without a flush, so that space that was given up goes back
            // to the host.
            self.due = Some(Instant::now() + PATIENCE);
        }
    }

    /// Makes the file longer by at least so many clusters.
    fn grow(&mut self, clusters: u64) {
        let shape = self.core.shape;
        let (next, end) = {
            let meta = self.core.meta();
            (meta.space.next(), meta.space.end())
        };
        if end - next >= clusters && self.core.meta().has_room(clusters) {
            return;
        }
        let clusters = clusters + self.core.meta().reserved;
        let wanted = next + clusters.max(self.core.room_step());
        match self.core.file.set_size(wanted << shape.cluster_bits) {
            Ok(()) => {
                let mut meta = self.core.meta();
                meta.file_bytes = wanted << shape.cluster_bits;
                meta.space.extend(wanted);
            }
            // A device has the size it has.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            Err(error) => warn!("{}: cannot make the file larger: {error}", self.core.name),
        }
        self.reserve();
        self.try_refused();
        let mut failures = 0;
        while !self.core.meta().has_room(clusters) && failures < REFUSALS_MAX {
            let Some(piece) = self.next_piece() else { break };
            failures += u32::from(self.punch(piece).is_err());
        }
    }

    /// What could not be punched a while ago is garbage as before.
    fn try_refused(&mut self) {
        if self.refused_at.is_some_and(|at| at.elapsed() >= PATIENCE) {
            self.refused_at = None;
            self.garbage.append(&mut self.refused);
            merge_runs(&mut self.garbage);
        }
    }

    /// What refcounts may need is not given away.
    fn reserve(&self) {
        let mut meta = self.core.meta();
        let end = meta.space.end();
        meta.reserved = self.refcounts.needed_before(end);
    }

    /// The same without a rest, to the end: there are no guests.
    fn reclaim_all(&mut self) {
        self.reclaim_limbo();
        self.punch_all();
    }

    fn punch_all(&mut self) {
        while let Some(piece) = self.next_piece() {
            let _ = self.punch(piece);
        }
    }

    /// Takes a piece of what is to be punched.
    fn next_piece(&mut self) -> Option<Range<u64>> {
        let most = (PIECE_BYTES_MAX >> self.core.shape.cluster_bits).max(1);
        let run = self.garbage.last_mut()?;
        let piece = run.start.max(run.end.saturating_sub(most))..run.end;
        run.end = piece.start;
        if run.is_empty() {
            self.garbage.pop();
        }
        Some(piece)
    }

    /// Tells a device that does not punch what has been given up, but not what was free all along.
    fn tell_device(&mut self, epoch: u64, runs: &[Range<u64>]) {
        if epoch == 0 || self.core.file.discards_to_zeroes() {
            return;
        }
        for run in runs {
            let (offset, bytes) = self.place(run);
            if let Err(errno) = self.file.run(FileOp::Discard { offset, bytes }) {
                warn!("{}: cannot give space back: {errno}", self.core.name);
            }
        }
    }

    /// Gives clusters back to the host that no request can be using any more, and makes them
    /// available.
    fn reclaim_limbo(&mut self) {
        let mut found = false;
        while let Some((epoch, _)) = self.limbo.front() {
            let is_used = self.core.epochs.oldest() <= *epoch;
            if is_used && !mutant("qcow2.limbo.ignores-pins") {
                break;
            }
            let (epoch, mut runs) = self.limbo.pop_front().expect("just seen");
            found |= !runs.is_empty();
            self.tell_device(epoch, &runs);
            self.garbage.append(&mut runs);
        }
        if found {
            merge_runs(&mut self.garbage);
        }
        self.try_refused();
        if !self.core.file.discards_to_zeroes() {
            return; // grow makes zero what is needed
        }
        let bits = self.core.shape.cluster_bits;
        let size = |run: &Range<u64>| (run.end - run.start) << bits;
        let mut left = self.garbage.iter().map(size).sum::<u64>();
        // Guests that give up more than is punched beside them are not to fill the host.
        let most = GARBAGE_BYTES_MIN.max(self.core.capacity().bytes() / GARBAGE_PART);
        if left <= most && self.rests_until.is_some_and(|end| end > Instant::now()) {
            return;
        }
        self.rests_until = None;
        let turn = Instant::now();
        while let Some(piece) = self.next_piece() {
            let began = Instant::now();
            left -= size(&piece);
            let _ = self.punch(piece);
            let mut rest = self.pace.rest_after(began, &self.core.activity);
            if left > most {
                rest = Duration::ZERO;
            }
            // A commit may be due meanwhile.
            let over = !rest.is_zero() || turn.elapsed() > TURN_MAX;
            if over && !self.garbage.is_empty() {
                self.rests_until = Some(Instant::now() + rest);
                return;
            }
        }
    }

    /// Clusters that were given up and that the host has not got back.
    fn dead(&self) -> u64 {
        let limbo = self.limbo.iter().flat_map(|(_, runs)| runs);
        // On a device that does not punch all of it has been discarded, or was free all along.
        let kept = self.core.file.discards_to_zeroes();
        let garbage = self.garbage.iter().chain(&self.refused).filter(|_| kept);
        let idle = limbo.chain(garbage).map(|run| run.end - run.start);
        idle.sum::<u64>() + self.pending.dropped.len() as u64
    }

    /// Where clusters lie in the file, and how many bytes they have.
    fn place(&self, run: &Range<u64>) -> (FileOffset, u64) {
        let shape = self.core.shape;
        let offset = FileOffset::new(shape.offset(HostCluster(run.start)));
        (offset, (run.end - run.start) << shape.cluster_bits)
    }

    /// Makes clusters available. If that fails they are tried again later: a host may be full, or
    /// not answer, for a moment.
    fn punch(&mut self, run: Range<u64>) -> Outcome {
        let (offset, bytes) = self.place(&run);
        self.core.discards.count_runs(1);
        let outcome = self.file.run(FileOp::Punch { offset, bytes });
        match outcome {
            Ok(()) => self.core.meta().space.give_back(run),
            Err(errno) => {
                if self.refused_at.is_none() {
                    warn!("{}: cannot give space back: {errno}", self.core.name);
                }
                self.refused.push(run);
                self.refused_at.get_or_insert_with(Instant::now);
            }
        }
        outcome
    }

    /// Removes what was allocated ahead of need from the end of the file.
    fn close(&mut self) -> Outcome {
        if self.core.has_failed() {
            return Err(Errno::IO);
        }
        if self.core.meta().is_changed() || self.pending.is_some() || self.refcounts.owes() {
            self.commit()?;
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
                // A device has the size it has.
                Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => {
                    return Err(Errno::IO);
                }
                Ok(()) | Err(_) => {}
            }
        }
        let redo = self.core.meta().redo.take();
        if let Some(redo) = redo {
            self.write_header(Header { autoclear: 0, ..self.header.clone() })?;
            // It is not needed any more; if it stays, that does no harm.
            let _ = redo.remove();
        }
        Ok(())
    }

    fn sync(&mut self) -> Outcome {
        let outcome = self.core.sync.run(&mut self.file, &self.waker);
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
