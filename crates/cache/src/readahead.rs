//! Read-ahead decisions: detects sequential streams of one queue, and whether reading ahead of them
//! has paid off.
//!
//! Pure: input are the reads of a guest, output the next range to read. A window of 128 KiB follows
//! the second read of a stream and doubles with each refill, up to 1 MiB; it is refilled when half
//! of it has been used. Blocks unused when a stream ends are a loss. While losses outweigh used
//! blocks, streams have to be longer before anything is read ahead of them.

use std::ops::Range;

use crate::BLOCK_SECTORS;

/// Streams of a queue that are tracked at once.
const STREAMS: usize = 8;
/// Window in blocks, at first and at most.
const WINDOW_FIRST: u64 = 32;
pub const WINDOW_MAX: u64 = 256;
/// Consecutive reads that make a stream, normally and while reading ahead does not pay off.
const READS_MIN: u32 = 2;
const READS_MIN_IN_DEBT: u32 = 32;
/// Bounds of the balance, so that the past is forgotten, and the balance below which reading ahead
/// does not pay off.
const BALANCE_MAX: i64 = 4096;
const DEBT: i64 = -1024;

/// A run of reads, each of which begins where the last one ended.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// First sector of the next read.
    next: u64,
    /// First block that is neither read nor read ahead.
    ahead: u64,
    window: u64,
    reads: u32,
    /// Time of its last read, in reads of the queue.
    turn: u64,
}

/// The streams of one queue.
#[derive(Debug, Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    turn: u64,
    /// Blocks read ahead that were used, minus those that were not.
    balance: i64,
}

impl Streams {
    /// Processes a guest's read of `sectors`, on a disk of `disk_blocks` blocks. Returns the blocks
    /// to read ahead, if any: at most `window_max` beyond the read.
    pub fn read(
        &mut self,
        sectors: Range<u64>,
        disk_blocks: u64,
        window_max: u64,
    ) -> Option<Range<u64>> {
        self.turn += 1;
        let continues = |it: &Stream| it.reads > 0 && it.next == sectors.start;
        let Some(index) = self.streams.iter().position(continues) else {
            self.begin(sectors.end);
            return None;
        };
        let reads_min = if self.balance < DEBT { READS_MIN_IN_DEBT } else { READS_MIN };
        let stream = &mut self.streams[index];
        let (before, end) = (first_unread(stream.next), first_unread(sectors.end));
        let used = stream.ahead.min(end).saturating_sub(before);
        self.balance = (self.balance + used as i64).min(BALANCE_MAX);
        stream.next = sectors.end;
        stream.ahead = stream.ahead.max(end);
        stream.reads = stream.reads.saturating_add(1);
        stream.turn = self.turn;
        let is_due = stream.ahead - end <= stream.window / 2;
        if stream.reads < reads_min || !is_due {
            return None;
        }
        stream.window = (stream.window * 2).clamp(WINDOW_FIRST, WINDOW_MAX).min(window_max);
        let from = stream.ahead;
        stream.ahead = from.max((end + stream.window).min(disk_blocks));
        (from < stream.ahead).then_some(from..stream.ahead)
    }

    /// Records that of the range to read ahead only the part before `reached` is being read.
    pub fn came_to(&mut self, range: &Range<u64>, reached: u64) {
        let asked = |it: &&mut Stream| {
            it.reads > 0 && it.ahead == range.end && first_unread(it.next) <= range.start
        };
        if let Some(stream) = self.streams.iter_mut().find(asked) {
            stream.ahead = reached.clamp(range.start, range.end);
        }
    }

    /// Begins a stream, in place of the least recently read one.
    fn begin(&mut self, next: u64) {
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.turn);
        if let Some(stream) = oldest {
            let unused = stream.ahead - first_unread(stream.next);
            self.balance = (self.balance - unused as i64).max(-BALANCE_MAX);
            let ahead = first_unread(next);
            *stream = Stream { next, ahead, window: 0, reads: 1, turn: self.turn };
        }
    }
}

/// Returns the first block of which nothing has been read when all before this sector has.
fn first_unread(sector: u64) -> u64 {
    sector.div_ceil(BLOCK_SECTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = 1 << 20;

    fn streams() -> Streams {
        Streams::default()
    }

    /// Reads one block.
    fn read(streams: &mut Streams, block: u64, disk_blocks: u64) -> Option<Range<u64>> {
        let start = block * BLOCK_SECTORS;
        streams.read(start..start + BLOCK_SECTORS, disk_blocks, WINDOW_MAX)
    }

    #[test]
    fn a_stream_is_read_ahead_further_and_further_and_no_block_twice() {
        let mut streams = streams();
        let mut ahead = 0;
        let mut sizes = Vec::new();
        for block in 0..2000 {
            if let Some(range) = read(&mut streams, block, DISK) {
                assert!(range.start == ahead.max(block + 1) && range.end > range.start);
                ahead = range.end;
                sizes.push(range.end - block - 1);
            }
            assert!(block < 2 || ahead > block, "block {block} was not there in time");
        }
        assert_eq!(sizes[..5], [32, 64, 128, 256, 256]);
    }

    #[test]
    fn several_streams_are_followed_beside_random_reads() {
        let mut streams = streams();
        let mut random = fastrand::Rng::with_seed(1);
        let mut refills = [0; 4];
        for step in 0..512 {
            for (stream, refills) in (1..).zip(&mut refills) {
                let block = stream * 100_000 + step;
                *refills += usize::from(read(&mut streams, block, DISK).is_some());
            }
            let block = random.u64(0..90_000) * 10;
            read(&mut streams, block, DISK);
        }
        assert!(refills.iter().all(|count| *count > 3), "{refills:?}");
    }

    /// Reads of two blocks at random places: reading ahead would read 128 KiB each time for
    /// nothing.
    #[test]
    fn what_does_not_pay_stops_and_begins_again_when_it_does() {
        let mut streams = streams();
        let read_ahead = |streams: &mut Streams, start: u64, count: u64| -> u64 {
            let reads = (start..start + count).filter_map(|at| read(streams, at, DISK));
            reads.map(|range| range.end - range.start).sum()
        };
        let first: u64 = (0..100).map(|step| read_ahead(&mut streams, step * 1000, 2)).sum();
        let later: u64 = (100..1000).map(|step| read_ahead(&mut streams, step * 1000, 2)).sum();
        assert!(first > 1000 && later == 0, "{first}, then {later}");
        // One long stream shows that reading ahead pays off again.
        assert!(read_ahead(&mut streams, 500, 8000) > 7000);
        assert!(read_ahead(&mut streams, 20_500, 2) > 0);
    }

    #[test]
    fn what_could_not_be_read_ahead_is_asked_for_again() {
        let mut streams = streams();
        assert_eq!(read(&mut streams, 0, DISK), None);
        let range = read(&mut streams, 1, DISK).unwrap();
        assert_eq!(range, 2..34);
        streams.came_to(&range, 10);
        assert_eq!(read(&mut streams, 2, DISK).unwrap().start, 10);
    }

    #[test]
    fn nothing_is_read_past_the_end_of_the_disk() {
        let mut streams = streams();
        let ranges = (0..100).filter_map(|at| read(&mut streams, at, 100));
        assert!(ranges.map(|range| range.end).max() == Some(100));
    }

    #[test]
    fn reads_of_parts_of_blocks_are_a_stream() {
        let mut streams = streams();
        assert_eq!(streams.read(0..3, DISK, WINDOW_MAX), None);
        assert_eq!(streams.read(3..11, DISK, WINDOW_MAX), Some(2..34));
        assert_eq!(streams.read(11..12, DISK, WINDOW_MAX), None);
        // Repeated reads of the same block are not a stream.
        for _ in 0..5 {
            assert_eq!(streams.read(800..808, DISK, WINDOW_MAX), None);
        }
    }
}
