//! Loom models: records of two queues of a log image commit in the order in which they were placed.

use flowstone_block::model::{check, spawn};
use flowstone_block::{NextLook, Reactor, SectorCount};
use flowstone_log_format::{BLOCK_SECTORS, Codec};
use flowstone_log_store::SegmentStore;
use flowstone_sim::SimDisk;

use super::*;
use crate::log::Log;
use crate::volume::map::BlockMap;

const SHAPE: Shape = Shape { segment_blocks: 64, reserve_percent: 20, streams: 1 };
const BLOCKS: u64 = 4;

/// An image with one head and some segments.
fn log() -> (Arc<Log>, Arc<Volume>) {
    let mut table = SegmentTable::new(SHAPE, 60, 1);
    while let Some(free) = table.take_free() {
        table.make_ready(free);
    }
    let mut state = AppendState::new(SHAPE, table, Sequence::FIRST);
    let (segment, incarnation) = state.segments.open(0).unwrap();
    let place = HeadPlace { incarnation, segment, block: 0 };
    state.heads[0] = Head { place, has_space: true, for_trims: false };
    let capacity = SectorCount::new(BLOCKS * BLOCK_SECTORS);
    let store = SegmentStore::new(Box::new(SimDisk::new(1 << 20)), SHAPE);
    let codec = Codec::new(&[0; 16]);
    let volume = Arc::new(Volume::new(capacity, BlockMap::default()));
    (Arc::new(Log::new("model".into(), store, codec, state)), volume)
}

fn place(log: &Log, volume: &Volume, lba: u64, owner: &Arc<QueueWaker>) -> Place {
    let entries = [Entry::Data { lba, checksum: 1 }];
    let draft =
        Draft { stream: 0, entries: &entries, payload_blocks: 1, expected: &[], only_trims: false };
    log.place(&draft, volume, owner).unwrap()
}

/// The second queue's record is written first, and waits for that of the other queue. A thread that
/// sees, without the lock, that it has committed finds it in the map, and the one before it.
#[test]
fn a_record_that_has_committed_is_in_the_map() {
    check("log, commit", 5, || {
        let (log, volume) = log();
        let reactor = Reactor::new().unwrap();
        let mine = QueueWaker::new(&reactor);
        let others = QueueWaker::new(&Reactor::new().unwrap());
        let first = place(&log, &volume, 0, &others).record.header.sequence;
        let second = place(&log, &volume, 1, &mine).record.header.sequence;
        let (other, map) = (Arc::clone(&log), Arc::clone(&volume));
        let other = spawn(move || other.written(first, true, &map.map, &others));
        log.written(second, true, &volume.map, &mine);
        while !log.has_committed(second) {
            reactor.sleep(|| NextLook::now_if(log.has_committed(second)));
        }
        assert!(volume.map.get(0).is_mapped() && volume.map.get(1).is_mapped());
        other.join().unwrap();
    });
}
