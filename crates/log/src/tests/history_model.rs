//! Judges the content of an image by what its guest has seen of it.
//!
//! Every sector that a guest writes states its position and the write it comes from. A
//! [`HistoryModel`] keeps, for each sector, the changes to it and when each began and ended. After
//! a crash it judges the content found:
//!
//! * Each sector holds the result of one of its changes, and none older than a completed flush has
//!   made durable. After a mere kill, none older than any completed change.
//! * Of two changes, one submitted after the other had completed, the later is not there without
//!   the earlier: the content is a prefix.
//! * A change is in a block of 4 KiB completely, or not at all.

use std::ops::Range;

use flowstone_sim::Moment;

pub const SECTOR: usize = 512;
const BLOCK_SECTORS: u64 = 8;

/// Content of a sector: 0 for zeroes, or the number of the write that it comes from.
pub type Stamp = u64;

/// End of the use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    PowerCut,
    /// The daemon died, its host stayed up.
    Kill,
}

/// Time of an event: in the order of the guest's events, and in that of the disk's.
#[derive(Clone, Copy, Debug)]
struct When {
    tick: u64,
    moment: Moment,
}

/// A change, as its submitter knows it.
#[derive(Clone, Debug)]
struct Change {
    /// 0 for zeroes.
    stamp: Stamp,
    durable: bool,
    begun: When,
    /// `None` while in flight, and for ever if it failed: then its effect is undefined.
    ended: Option<When>,
}

#[derive(Clone, Copy, Debug)]
struct Flush {
    begun: When,
    ended: Option<When>,
}

/// History of one image from a known content on.
#[derive(Clone)]
pub struct HistoryModel {
    base: Vec<Stamp>,
    changes: Vec<Change>,
    flushes: Vec<Flush>,
    /// For each sector, the changes to it in order.
    versions: Vec<Vec<usize>>,
    next_stamp: Stamp,
    ticks: u64,
}

impl HistoryModel {
    /// Begins with a disk that holds `base`; stamps from `next_stamp` on are new.
    pub fn new(base: Vec<Stamp>, next_stamp: Stamp) -> Self {
        let versions = vec![Vec::new(); base.len()];
        let (changes, flushes) = Default::default();
        Self { base, changes, flushes, versions, next_stamp, ticks: 0 }
    }

    pub fn sectors(&self) -> u64 {
        self.base.len() as u64
    }

    pub fn next_stamp(&self) -> Stamp {
        self.next_stamp
    }

    /// Grows the disk; the new part holds zeroes.
    pub fn grow(&mut self, sectors: u64) {
        self.base.resize(sectors as usize, 0);
        self.versions.resize(sectors as usize, Vec::new());
    }

    /// Returns the same history for a disk of this size: sectors beyond its end have never been
    /// written.
    pub fn resized(&self, sectors: u64) -> Self {
        let mut model = self.clone();
        model.grow(sectors);
        model
    }

    fn when(&mut self, moment: Moment) -> When {
        self.ticks += 1;
        When { tick: self.ticks, moment }
    }

    /// Adds a submitted change; returns its number.
    pub fn begin(&mut self, sectors: Range<u64>, zeroes: bool, durable: bool, at: Moment) -> usize {
        let number = self.changes.len();
        let stamp = if zeroes { 0 } else { self.next_stamp };
        self.next_stamp += 1;
        for sector in sectors {
            self.versions[sector as usize].push(number);
        }
        let begun = self.when(at);
        self.changes.push(Change { stamp, durable, begun, ended: None });
        number
    }

    pub fn stamp_of(&self, change: usize) -> Stamp {
        self.changes[change].stamp
    }

    /// Marks a change as completed successfully.
    pub fn end(&mut self, change: usize, at: Moment) {
        self.changes[change].ended = Some(self.when(at));
    }

    pub fn begin_flush(&mut self, at: Moment) -> usize {
        let begun = self.when(at);
        self.flushes.push(Flush { begun, ended: None });
        self.flushes.len() - 1
    }

    /// Marks a flush as completed successfully.
    pub fn end_flush(&mut self, flush: usize, at: Moment) {
        self.flushes[flush].ended = Some(self.when(at));
    }

    /// Returns the oldest version of a sector that a read that begins now may return.
    pub fn completed_version(&self, sector: u64) -> usize {
        let versions = &self.versions[sector as usize];
        let ended = versions.iter().rposition(|change| self.changes[*change].ended.is_some());
        ended.map_or(0, |index| index + 1)
    }

    /// Returns whether a sector may hold `seen`: the version `oldest` or a later one.
    pub fn may_hold(&self, sector: u64, oldest: usize, seen: Stamp) -> bool {
        (oldest..=self.versions[sector as usize].len()).any(|it| self.value(sector, it) == seen)
    }

    /// Returns the content of the disk when nothing is in flight and nothing has failed.
    pub fn latest(&self) -> Vec<Stamp> {
        (0..self.sectors())
            .map(|sector| self.value(sector, self.versions[sector as usize].len()))
            .collect()
    }

    /// Version 0 is the initial content.
    fn value(&self, sector: u64, version: usize) -> Stamp {
        match version {
            0 => self.base[sector as usize],
            _ => self.changes[self.versions[sector as usize][version - 1]].stamp,
        }
    }

    /// Judges the content found after an end at `moment`.
    pub fn judge(&self, seen: &[Stamp], moment: Moment, end: End) -> Result<(), String> {
        if seen.len() != self.base.len() {
            return Err(format!("{} sectors instead of {}", seen.len(), self.base.len()));
        }
        let candidates = self.candidates(seen, moment, end)?;
        self.judge_blocks(&candidates)?;
        match end {
            End::PowerCut => self.judge_prefix(&candidates, moment),
            End::Kill => Ok(()),
        }
    }

    /// Returns, for each sector that ever changed, the versions that it can have.
    fn candidates(
        &self,
        seen: &[Stamp],
        moment: Moment,
        end: End,
    ) -> Result<Vec<(u64, Vec<usize>)>, String> {
        let ended = |when: Option<When>| when.filter(|when| when.moment <= moment);
        let flushed = self.flushes.iter().filter(|flush| ended(flush.ended).is_some());
        let flushed = flushed.map(|flush| flush.begun.tick).max().unwrap_or(0);
        let promised = |change: &Change| {
            ended(change.ended)
                .is_some_and(|when| end == End::Kill || change.durable || when.tick < flushed)
        };
        let mut found = Vec::new();
        for (sector, &stamp) in (0..).zip(seen) {
            let versions = &self.versions[sector as usize];
            if versions.is_empty() && stamp == self.base[sector as usize] {
                continue;
            }
            let begun = versions.iter().map(|change| &self.changes[*change]);
            let begun = begun.take_while(|change| change.begun.moment < moment);
            let latest = begun.clone().count();
            let oldest = begun.clone().rposition_of(promised).map_or(0, |index| index + 1);
            let fits: Vec<usize> =
                (oldest..=latest).filter(|version| self.value(sector, *version) == stamp).collect();
            if fits.is_empty() {
                let older = (0..oldest).any(|version| self.value(sector, version) == stamp);
                let why = if older { "a promised change is lost" } else { "never put there" };
                let wanted = self.value(sector, oldest);
                return Err(format!(
                    "sector {sector} (block {}) holds {stamp}: {why}; promised is {wanted}",
                    sector / BLOCK_SECTORS
                ));
            }
            found.push((sector, fits));
        }
        Ok(found)
    }

    /// Checks that each change is in a block completely or not at all.
    fn judge_blocks(&self, candidates: &[(u64, Vec<usize>)]) -> Result<(), String> {
        for block in candidates.chunk_by(|a, b| a.0 / BLOCK_SECTORS == b.0 / BLOCK_SECTORS) {
            // For each change: whether it is certainly there, certainly missing, in some sector.
            let mut fates: Vec<(usize, bool, bool)> = Vec::new();
            for (sector, fits) in block {
                let (least, most) = (fits[0], fits[fits.len() - 1]);
                for (version, change) in (1..).zip(&self.versions[*sector as usize]) {
                    // A failed change may be missing below a later one.
                    let ended = self.changes[*change].ended.is_some();
                    let there = if ended { version <= least } else { fits[..] == [version] };
                    let missing = version > most;
                    match fates.iter_mut().find(|fate| fate.0 == *change) {
                        Some(fate) => *fate = (*change, fate.1 | there, fate.2 | missing),
                        None => fates.push((*change, there, missing)),
                    }
                }
            }
            if let Some((change, ..)) = fates.iter().find(|(_, there, missing)| *there && *missing)
            {
                let block = block[0].0 / BLOCK_SECTORS;
                let stamp = self.changes[*change].stamp;
                return Err(format!("block {block} holds a part of change {change} ({stamp})"));
            }
        }
        Ok(())
    }

    /// Checks that no change is there without those that had completed before it was submitted.
    fn judge_prefix(&self, candidates: &[(u64, Vec<usize>)], moment: Moment) -> Result<(), String> {
        // When the version was submitted, and when the first later one had completed.
        let bounds = |sector: u64, version: usize| {
            let versions = &self.versions[sector as usize];
            let begun = version.checked_sub(1).map_or(0, |n| self.changes[versions[n]].begun.tick);
            let ended = versions[version..].iter().filter_map(|change| self.changes[*change].ended);
            let lost = ended.filter(|when| when.moment <= moment).map(|when| when.tick).min();
            (begun, lost.unwrap_or(u64::MAX))
        };
        let (mut last_there, mut first_lost) = ((0, 0), (u64::MAX, 0));
        for (sector, fits) in candidates.iter().filter(|(_, fits)| fits.len() == 1) {
            let (begun, lost) = bounds(*sector, fits[0]);
            last_there = last_there.max((begun, *sector));
            first_lost = first_lost.min((lost, *sector));
        }
        if first_lost.0 < last_there.0 {
            return Err(format!(
                "no prefix: sector {} has what was submitted after what sector {} lacks had \
                 completed",
                last_there.1, first_lost.1
            ));
        }
        self.judge_cut(candidates, bounds)
    }

    /// Checks that there is one point of the order at which every sector is as it was found. A
    /// sector of zeroes may be one never written or one trimmed: each alone proves little.
    fn judge_cut(
        &self,
        candidates: &[(u64, Vec<usize>)],
        bounds: impl Fn(u64, usize) -> (u64, u64),
    ) -> Result<(), String> {
        let end = self.ticks + 1;
        // For each tick, the change in the number of sectors that fit.
        let mut fitting = vec![0i64; end as usize + 2];
        for (sector, fits) in candidates {
            let mut spans: Vec<(u64, u64)> =
                fits.iter().map(|version| bounds(*sector, *version)).collect();
            spans.sort_unstable();
            let mut covered = 0;
            for (begun, lost) in spans {
                let (from, to) = (begun.max(covered), lost.min(end + 1));
                if from < to {
                    fitting[from as usize] += 1;
                    fitting[to as usize] -= 1;
                    covered = to;
                }
            }
        }
        let mut count = 0;
        let fits_all = |more: &i64| {
            count += more;
            count == candidates.len() as i64
        };
        match fitting.iter().any(fits_all) {
            true => Ok(()),
            false => Err("no prefix: no point of the order fits all sectors".into()),
        }
    }
}

/// `rposition` for iterators of unknown length.
trait LastPosition: Iterator + Sized {
    fn rposition_of(self, wanted: impl Fn(Self::Item) -> bool) -> Option<usize> {
        self.enumerate().filter_map(|(index, item)| wanted(item).then_some(index)).last()
    }
}

impl<T: Iterator> LastPosition for T {}

/// Fills the memory of a write that begins at `sector`.
pub fn stamp(memory: &mut [u8], sector: u64, stamp: Stamp) {
    for (sector, bytes) in (sector..).zip(memory.chunks_exact_mut(SECTOR)) {
        bytes.copy_from_slice(&stamped(sector, stamp));
    }
}

fn stamped(sector: u64, stamp: Stamp) -> [u8; SECTOR] {
    let mut bytes = [(sector.wrapping_mul(31) + stamp * 7) as u8; SECTOR];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..16].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

/// Decodes the content of the sectors in `memory`, the first of which is `sector`.
pub fn read_stamps(memory: &[u8], sector: u64) -> Result<Vec<Stamp>, String> {
    (sector..).zip(memory.chunks_exact(SECTOR)).map(|(at, bytes)| read_stamp(bytes, at)).collect()
}

fn read_stamp(bytes: &[u8], sector: u64) -> Result<Stamp, String> {
    if bytes == [0; SECTOR] {
        return Ok(0);
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
    let (found, stamp) = (word(0), word(8));
    if bytes == stamped(sector, stamp) {
        return Ok(stamp);
    }
    Err(format!("sector {sector} holds nonsense, or sector {found}'s data of change {stamp}"))
}

#[cfg(test)]
mod tests {
    use flowstone_sim::SimDisk;

    use super::*;

    /// A disk of three blocks, and its events.
    struct Script {
        model: HistoryModel,
        disk: SimDisk,
    }

    impl Script {
        fn new(base: [Stamp; 3]) -> Self {
            let sectors = base.iter().flat_map(|stamp| [*stamp; 8]).collect();
            Self { model: HistoryModel::new(sectors, 100), disk: SimDisk::new(1 << 20) }
        }

        /// Lets time pass and returns the moment.
        fn now(&self) -> Moment {
            self.disk.write_at(0, &[1; 512]);
            self.disk.now()
        }

        fn change(&mut self, block: u64, zeroes: bool) -> Stamp {
            let now = self.now();
            let change = self.model.begin(block * 8..block * 8 + 8, zeroes, false, now);
            let now = self.now();
            self.model.end(change, now);
            self.model.stamp_of(change)
        }

        fn flush(&mut self) {
            let now = self.now();
            let flush = self.model.begin_flush(now);
            let now = self.now();
            self.model.end_flush(flush, now);
        }

        fn judge(&self, seen: [Stamp; 3]) -> Result<(), String> {
            let sectors: Vec<Stamp> = seen.iter().flat_map(|stamp| [*stamp; 8]).collect();
            let now = self.now();
            self.model.judge(&sectors, now, End::PowerCut)
        }
    }

    #[test]
    fn a_flushed_trim_that_is_undone_is_seen() {
        let mut script = Script::new([7, 0, 0]);
        let written = script.change(1, false);
        script.change(0, true);
        script.change(1, true);
        script.flush();
        assert_eq!(script.judge([0, 0, 0]), Ok(()));
        script.judge([7, 0, 0]).unwrap_err();
        script.judge([0, written, 0]).unwrap_err();
    }

    #[test]
    fn a_lost_trim_is_seen_though_what_came_after_it_left_zeroes() {
        let mut script = Script::new([7, 0, 0]);
        script.change(0, true);
        script.change(1, false);
        script.change(1, true);
        let later = script.change(2, false);
        assert_eq!(script.judge([0, 0, later]), Ok(()));
        assert_eq!(script.judge([7, 0, 0]), Ok(()));
        script.judge([7, 0, later]).unwrap_err();
    }

    /// Block 0 is zero before its write or after its trim, and so is block 1; the content of block
    /// 2 proves that one is before, and the other after.
    #[test]
    fn zeroes_of_different_times_are_no_prefix() {
        let mut script = Script::new([0, 0, 0]);
        script.change(1, false);
        let early = script.change(2, false);
        script.change(0, false);
        script.change(1, true);
        script.change(2, false);
        script.change(0, true);
        script.judge([0, 0, early]).unwrap_err();
    }
}
