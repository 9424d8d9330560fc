use std::sync::Arc;

use flowstone_block::{Sector, SectorCount};

use super::queues::{QueueMemory, SharedDetector};
use super::*;

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

/// Splits a write into blocks of 4 KiB.
fn blocks(write: Extent) -> impl Iterator<Item = Extent> {
    (write.start().get()..write.end().get()).step_by(8).map(|start| extent(start, 8))
}

/// A disk with some queues and a cyclic journal.
struct Disk {
    queues: Vec<QueueMemory>,
    /// Requests go through any queue, and pieces of a transaction come in any order.
    is_wild: bool,
    random: fastrand::Rng,
    head: u64,
}

/// Start of the journal, in sectors; it has 8 MiB.
const START: u64 = 100_000;
const END: u64 = START + 16_384;

impl Disk {
    fn new(seed: u64) -> Self {
        println!("seed {seed}");
        let random = fastrand::Rng::with_seed(seed);
        let shared = Arc::new(SharedDetector::default());
        let queues = (0..4).map(|queue| QueueMemory::new(&shared, queue)).collect();
        Self { queues, is_wild: false, random, head: START + 8 }
    }

    fn queue(&mut self) -> &mut QueueMemory {
        let queue = if self.is_wild { self.random.usize(0..4) } else { 0 };
        self.queues[queue].refresh();
        &mut self.queues[queue]
    }

    fn write(&mut self, start: u64, sectors: u64) -> bool {
        self.queue().wrote(extent(start, sectors))
    }

    fn flush(&mut self) {
        self.queue().flushes();
    }

    fn is_journal(&mut self, start: u64) -> bool {
        self.queues[0].refresh();
        self.queues[0].reads_journal(extent(start, 8))
    }

    /// Writes the next blocks of the journal. Returns the number of writes, and how many of them
    /// were detected.
    fn append(&mut self, sectors: u64) -> (u32, u32) {
        let to_end = sectors.min(END - self.head);
        let mut writes = vec![extent(self.head, to_end)];
        self.head += to_end;
        if self.head == END {
            self.head = START + 8;
        }
        if to_end < sectors {
            writes.push(extent(self.head, sectors - to_end));
            self.head += sectors - to_end;
        }
        if self.is_wild {
            writes = writes.iter().flat_map(|write| blocks(*write)).collect();
            self.random.shuffle(&mut writes);
        }
        let take = |write: &&Extent| self.queue().wrote(**write);
        let known = writes.iter().filter(take).count();
        (writes.len() as u32, known as u32)
    }

    /// Writes a transaction, as after a write and fsync. Returns the same.
    fn commit(&mut self) -> (u32, u32) {
        let body = 8 * self.random.u64(2..6);
        let (writes, known) = self.append(body);
        self.flush();
        let (more, known_more) = self.append(8);
        self.flush();
        (writes + more, known + known_more)
    }
}

/// Returns the percentage of journal writes that are detected, and the number of others taken for
/// them.
fn run(mut disk: Disk) -> (u32, u32) {
    disk.head += 8 * disk.random.u64(..2000);
    let (mut writes, mut known, mut misnamed) = (0, 0, 0);
    for _ in 0..5_000 {
        // Data is written in front of and behind the journal.
        for _ in 0..disk.random.u32(0..4) {
            let before = disk.random.bool();
            let at = disk.random.u64(..90_000);
            misnamed += u32::from(disk.write(if before { at } else { END + at }, 8));
        }
        let (more, known_more) = disk.commit();
        (writes, known) = (writes + more, known + known_more);
    }
    println!("{known} of {writes} known, {misnamed} of data");
    let range = (START + NEAR_SECTORS + 8..END).step_by(8);
    assert!(range.into_iter().all(|at| disk.is_journal(at)), "all but the first blocks are known");
    (known * 100 / writes, misnamed)
}

#[test]
fn a_journal_is_known_after_a_few_transactions_and_all_its_turns() {
    let (known, misnamed) = run(Disk::new(fastrand::u64(..)));
    assert!(known >= 98 && misnamed <= 40, "{known} %, {misnamed}");
}

/// dm-crypt writes block by block, in any order, from any CPU, and flushes from any other.
#[test]
fn a_journal_whose_pieces_come_in_any_order_through_any_queue_is_known() {
    let (known, misnamed) = run(Disk { is_wild: true, ..Disk::new(fastrand::u64(..)) });
    assert!(known >= 95 && misnamed <= 40, "{known} %, {misnamed}");
}

/// Other writes with a pattern like a journal's, except that they do not alternate.
#[test]
fn files_that_are_appended_to_are_no_journals() {
    let mut disk = Disk::new(fastrand::u64(..));
    let mut at = 0;
    for step in 0..2_000u64 {
        // One block and a flush; large pieces and a flush; pieces of any length; no flush for long.
        let sectors = [8, 64, 8 * disk.random.u64(1..9), 256][step as usize / 500];
        assert!(!disk.write(at, sectors), "step {step}");
        at += sectors;
        if step < 1500 || step % 100 == 0 {
            disk.flush();
        }
    }
}

#[test]
fn a_journal_that_ends_before_data_takes_little_of_it() {
    let mut disk = Disk::new(1);
    while disk.head < END - 200 {
        disk.commit();
    }
    let mut misnamed = 0;
    // A file of 64 MiB is written where the journal would continue.
    for at in (disk.head..disk.head + 131_072).step_by(256) {
        misnamed += 256 * u64::from(disk.write(at, 256));
    }
    assert!(misnamed <= GROWTH_SECTORS_MAX, "{misnamed} sectors");
}

/// A new file system replaces the old one: random writes are not a journal.
#[test]
fn a_journal_that_is_not_written_like_one_any_more_is_forgotten() {
    let mut disk = Disk::new(fastrand::u64(..));
    for _ in 0..2_000 {
        disk.commit();
    }
    assert!(disk.is_journal(START + 800));
    for _ in 0..60 {
        let at = START + 8 * disk.random.u64(1..2000);
        disk.write(at, 8);
    }
    disk.flush();
    assert!(!disk.is_journal(START + 800));
}

#[test]
fn many_streams_take_bounded_memory() {
    let mut random = fastrand::Rng::with_seed(7);
    let mut detector = Detector::default();
    for _ in 0..1000 {
        let mut writes: Vec<_> = (0..64).map(|_| extent(8 * random.u64(..1_000_000), 8)).collect();
        detector.flushed(&mut writes);
    }
    assert_eq!(detector.candidates.len(), CANDIDATES_MAX);
}

#[test]
fn many_streams_do_not_hide_the_journal() {
    let mut disk = Disk::new(fastrand::u64(..));
    for _ in 0..200 {
        for _ in 0..8 {
            let at = 1_000_000 + 8 * disk.random.u64(..1_000_000);
            disk.write(at, 8);
        }
        disk.commit();
    }
    assert!(disk.is_journal(START + 800));
}

/// A write of the journal's superblock, in front of it, was taken for its wrap-around: the range
/// seen so far for all of it.
#[test]
fn a_write_of_its_superblock_does_not_end_a_journal() {
    let mut disk = Disk::new(fastrand::u64(..));
    // The first transaction follows the superblock, between the same two flushes.
    disk.write(START, 8);
    for _ in 0..20 {
        disk.commit();
    }
    for _ in 0..300 {
        let (writes, known) = disk.commit();
        assert_eq!(writes, known);
        disk.write(START, 8);
        disk.flush();
    }
}

/// Seeds with which the two tests above fail: about one run in fifty does.
#[test]
fn a_journal_is_known_to_its_end_whatever_the_seed() {
    for seed in [3_462_761_060_172_361_223, 312_056_054_655_199_954, 16_536_949_619_257_578_133] {
        run(Disk::new(seed));
    }
}

#[test]
fn a_journal_in_any_order_is_known_to_its_end_whatever_the_seed() {
    for seed in [6_395_596_610_884_033_217, 13_059_846_159_470_239_620] {
        run(Disk { is_wild: true, ..Disk::new(seed) });
    }
}

/// Alternates bodies and commits of these sectors, sequentially, until a write is taken for a
/// journal's; returns the number of rounds.
fn turns_until_known(body: u64, commit: u64) -> Option<u32> {
    let mut disk = Disk::new(1);
    let mut at = 50_000;
    for turn in 0..30 {
        for sectors in [body, commit] {
            if disk.write(at, sectors) {
                return Some(turn);
            }
            disk.flush();
            at += sectors;
        }
    }
    None
}

#[test]
fn eight_turns_of_body_and_one_block_are_a_journal() {
    for (body, commit) in [(16, 8), (24, 8), (800, 8), (8, 2)] {
        let turns = turns_until_known(body, commit);
        assert!(turns.is_some_and(|it| (8..=9).contains(&it)), "{body}, {commit}: {turns:?}");
    }
    for (body, commit) in [(8, 8), (12, 8), (32, 16), (800, 64), (1024, 128)] {
        assert_eq!(turns_until_known(body, commit), None, "{body}, {commit}");
    }
}

#[test]
fn a_journal_is_forgotten_after_nine_writes_that_do_not_continue_it() {
    let mut disk = Disk::new(1);
    while disk.head < START + 8000 {
        disk.commit();
    }
    for nth in 0..8 {
        assert!(disk.write(START + 1000 + 800 * nth, 8), "{nth}");
        disk.flush();
    }
    assert!(disk.is_journal(START + 2000));
    disk.write(START + 1000, 8);
    disk.flush();
    assert!(!disk.is_journal(START + 2000));
}

#[test]
fn what_is_written_behind_a_journal_that_has_gone_round_is_data() {
    let mut disk = Disk::new(1);
    for _ in 0..2000 {
        disk.commit();
    }
    while disk.head < END - 100 {
        disk.commit();
    }
    assert!(disk.is_journal(END - 8));
    for at in (END..END + 4000).step_by(8) {
        assert!(!disk.write(at, 8), "at {at}");
    }
}

#[test]
fn a_journal_takes_4_mib_behind_it_between_two_flushes() {
    let mut disk = Disk::new(1);
    while disk.head < START + 2000 {
        disk.commit();
    }
    let taken =
        (disk.head..END + 30_000).step_by(64).filter(|at| disk.write(*at, 64)).count() as u64;
    assert!((8192 - 64..=8192).contains(&(64 * taken)), "{taken}");
}

#[test]
fn a_disk_has_eight_journals() {
    let mut detector = Detector::default();
    for journal in 0..20u64 {
        let mut at = 1_000_000 * (journal + 1);
        for _ in 0..12 {
            for sectors in [24, 8] {
                detector.flushed(&mut vec![extent(at, sectors)]);
                at += sectors;
            }
        }
        assert!(detector.journals().contain(extent(at - 8, 8)));
    }
    assert_eq!(detector.journals.0.len(), JOURNALS_MAX);
}

/// The journal is written last before each flush: it is detected after any number of other writes.
#[test]
fn what_is_written_last_is_remembered() {
    let mut disk = Disk::new(1);
    for _ in 0..30 {
        // Elsewhere and apart, so that none touches the one before.
        for nth in 0..200 {
            disk.write(1_000_000 + 16 * nth, 8);
        }
        disk.commit();
    }
    assert!(disk.is_journal(START + 400));
}
