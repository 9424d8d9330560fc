use flowstone_block::Errno;
use flowstone_log_format::RESERVE_DEFAULT_PERCENT;
use flowstone_sim::{Call, Fault, SimDisk};

use super::*;

const SEGMENT_BLOCKS: u32 = 64;
const SHAPE: Shape =
    Shape { segment_blocks: SEGMENT_BLOCKS, reserve_percent: RESERVE_DEFAULT_PERCENT, streams: 1 };
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A file of four segments and a half, all of whose blocks are written.
fn file() -> SimDisk {
    let content = vec![1; BLOCK_BYTES * SEGMENT_BLOCKS as usize * 9 / 2];
    SimDisk::from_bytes(&content)
}

fn segments(from: u32, to: u32) -> Range<SegmentId> {
    SegmentId::new(from)..SegmentId::new(to)
}

/// Returns which blocks read as zeroes.
fn empty(file: &SimDisk) -> Vec<usize> {
    let content = file.to_bytes();
    let blocks = content.chunks_exact(BLOCK_BYTES).enumerate();
    blocks.filter(|(_, block)| block.iter().all(|byte| *byte == 0)).map(|(at, _)| at).collect()
}

#[test]
fn what_is_freed_is_empty_and_nothing_else_is() {
    let file = file();
    let mut store = BlockingStore::open(&file, SHAPE).unwrap();
    store.free(segments(1, 3)).unwrap();
    assert_eq!(empty(&file), (64..192).collect::<Vec<_>>());
    store.free(segments(3, 3)).unwrap();
    assert_eq!(empty(&file).len(), 128);
    // The end of the file lies in the last segment.
    store.free_within(segments(4, 9), 288 * BLOCK).unwrap();
    assert_eq!(empty(&file), (64..192).chain(256..288).collect::<Vec<_>>());
    store.free_within(segments(7, 5), 288 * BLOCK).unwrap();
    assert_eq!(file.to_bytes().len() as u64, 288 * BLOCK);
}

#[test]
fn a_record_lies_at_its_address() {
    let file = file();
    let mut store = BlockingStore::open(&file, SHAPE).unwrap();
    let mut record = AlignedBuf::zeroed(2 * BLOCK_BYTES);
    record.fill(7);
    store.append(0, SHAPE.address(SegmentId::new(2), 5), &mut record).unwrap();
    let mut found = AlignedBuf::zeroed(4 * BLOCK_BYTES);
    Reader::open(&file).unwrap().read(Address::new(2 * 64 + 4), &mut found).unwrap();
    let first: Vec<u8> = found.chunks_exact(BLOCK_BYTES).map(|block| block[0]).collect();
    assert_eq!(first, [1, 7, 7, 1]);
}

#[test]
fn a_block_that_cannot_be_read_takes_no_other_with_it() {
    let file = file();
    file.inject(Fault::fail(Errno::IO).on(Call::Read).within(5 * BLOCK..6 * BLOCK).always());
    let mut reader = Reader::open(&file).unwrap();
    let mut buffer = AlignedBuf::zeroed(40 * BLOCK_BYTES);
    let reads = (0..).map(Address::new).zip(buffer.chunks_exact_mut(BLOCK_BYTES)).collect();
    let outcomes = reader.read_each(reads);
    assert_eq!(outcomes.len(), 40);
    for (at, (outcome, block)) in outcomes.iter().zip(buffer.chunks_exact(BLOCK_BYTES)).enumerate()
    {
        assert_eq!(*outcome, if at == 5 { Err(Errno::IO) } else { Ok(()) }, "{at}");
        assert!(at == 5 || block[0] == 1, "{at}");
    }
}

/// From a place inside allocated blocks, before them, behind them, and at the end.
#[test]
fn allocated_blocks_are_found() {
    let file = file();
    let mut store = BlockingStore::open(&file, SHAPE).unwrap();
    store.free(segments(1, 3)).unwrap();
    let reader = Reader::open(&file).unwrap();
    assert_eq!(reader.blocks(), 288);
    for (from, end, found) in [
        (10, 288, Some(10..64)),
        (10, 20, Some(10..20)),
        (70, 288, Some(192..288)),
        (70, 192, None),
        (70, 100, None),
        (288, 288, None),
        (300, 288, None),
        (1 << 32, 1 << 32, None),
    ] {
        assert_eq!(reader.next_allocated(from, end).unwrap(), found, "{from} to {end}");
    }
}

/// Neither more nor less of a segment than there is in the file.
#[test]
fn a_window_ends_with_its_segment_and_with_the_file() {
    let file = file();
    let mut reader = Reader::open(&file).unwrap();
    let mut window = Window::default();
    let mut show = |segment, first, count| {
        window.show(&mut reader, SHAPE, SegmentId::new(segment), first, count).unwrap()
    };
    assert!(show(1, 0, 64));
    assert!(!show(1, 1, 64));
    assert!(show(4, 31, 1));
    assert!(!show(4, 31, 2));
    assert!(!show(4, u32::MAX, 2));
    assert!(show(1, 63, 1));
}
