//! Guarantees of a volatile file besides those of a file: a kill is a power cut.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::thread;

use flowstone_block::{QueueContext, QueueDepth};
use flowstone_fileio::{
    Access, BlockingFile, FileIo, FileOffset, FileOp, OpenOptions, create_sparse,
};
use flowstone_sim::open_volatile;

const BLOCK_BYTES: u64 = 4096;
const BLOCKS: u64 = 512;

fn open(path: &Path) -> Box<dyn FileIo> {
    open_volatile(path, OpenOptions::new(Access::Write)).unwrap()
}

fn empty_file(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("disk.raw");
    create_sparse(&path, BLOCKS * BLOCK_BYTES).unwrap();
    path
}

fn write_all(file: &mut BlockingFile, value: u8) {
    let mut block = vec![value; BLOCK_BYTES as usize];
    for index in 0..BLOCKS {
        file.write(FileOffset::new(index * BLOCK_BYTES), &mut block).unwrap();
    }
}

fn blocks(path: &Path) -> Vec<Vec<u8>> {
    std::fs::read(path).unwrap().chunks(BLOCK_BYTES as usize).map(<[u8]>::to_vec).collect()
}

#[test]
fn what_was_synced_is_in_the_file_and_of_the_rest_any_part() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = empty_file(&dir);
    let file = open(&path);
    let mut queue = BlockingFile::new(&*file).unwrap();
    write_all(&mut queue, 1);
    BlockingFile::new(&*file).unwrap().sync().unwrap(); // another queue's flush
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 1), "a sync promises");

    write_all(&mut queue, 2);
    // The contents that a kill would leave now.
    let left = blocks(&path);
    assert!(left.iter().flatten().all(|byte| [1, 2].contains(byte)));
    let all = |value: u8| left.iter().filter(|it| it.iter().all(|byte| *byte == value)).count();
    let (old, new) = (all(1), all(2));
    assert!(old > 0 && new > 0, "{old} old blocks, {new} new ones");
    assert!(old + new < BLOCKS as usize, "no block is torn");
    let mut block = vec![0; BLOCK_BYTES as usize];
    for index in 0..BLOCKS {
        queue.read(FileOffset::new(index * BLOCK_BYTES), &mut block).unwrap();
        assert!(block.iter().all(|byte| *byte == 2), "reads see the newest");
    }

    drop((queue, file));
    assert!(blocks(&path).iter().flatten().all(|byte| *byte == 2), "closing is no power cut");
}

#[test]
fn a_durable_write_waits_for_no_flush() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = empty_file(&dir);
    let file = open(&path);
    let context = QueueContext::alone(QueueDepth(1)).unwrap();
    let mut channel = file.channel(&context).unwrap();
    write_all(&mut BlockingFile::new(&*file).unwrap(), 1);
    let mut block = vec![3; BLOCK_BYTES as usize];
    // SAFETY: block and list outlive the requests, which complete in submit: such a file works on
    // the calling thread.
    let list = [unsafe { flowstone_block::IoVec::of(&mut block) }];
    for index in 0..BLOCKS {
        let offset = FileOffset::new(index * BLOCK_BYTES);
        let op = FileOp::Write { offset, bytes: BLOCK_BYTES, durable: true };
        // SAFETY: as above.
        let memory = unsafe { flowstone_fileio::MemoryList::new(&list) };
        channel.submit(flowstone_fileio::FileRequest::new(op, memory, 0));
    }
    let mut done = Vec::new();
    channel.reap(&mut done);
    assert!(done.len() == BLOCKS as usize && done.iter().all(|it| it.outcome.is_ok()));
    assert!(blocks(&path).iter().flatten().all(|byte| *byte == 3));
    assert!(BlockingFile::new(&*file).unwrap().sync().is_ok());
    assert!(blocks(&path).iter().flatten().all(|byte| *byte == 3), "older data came back");
}

/// Each queue owns every fourth block, so neighbours in the file belong to different queues.
#[test]
fn queues_that_do_everything_at_once_read_what_they_wrote() {
    const QUEUES: u64 = 4;
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = empty_file(&dir);
    let file = open(&path);
    let seed = fastrand::u64(..);
    println!("seed {seed:#x}");
    let models: Vec<Vec<u8>> = thread::scope(|scope| {
        let queues = (0..QUEUES).map(|queue| {
            let file = &*file;
            scope.spawn(move || play(file, queue, QUEUES, seed ^ queue))
        });
        let queues: Vec<_> = queues.collect();
        queues.into_iter().map(|queue| queue.join().unwrap()).collect()
    });
    drop(file);
    for (index, block) in blocks(&path).iter().enumerate().take(BLOCKS as usize) {
        let value = models[index % QUEUES as usize][index / QUEUES as usize];
        assert!(block.iter().all(|byte| *byte == value), "block {index} should hold {value}");
    }
}

/// Executes random operations on one queue's blocks. Returns the value of each.
fn play(file: &dyn FileIo, queue: u64, queues: u64, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut channel = BlockingFile::new(file).unwrap();
    let mut model = vec![0; (BLOCKS / queues) as usize];
    let mut block = vec![0; BLOCK_BYTES as usize];
    for step in 0..4000 {
        let index = random.usize(0..model.len());
        let offset = FileOffset::new((index as u64 * queues + queue) * BLOCK_BYTES);
        let range = (offset, BLOCK_BYTES);
        let zeroed = |op| (0, Some(op));
        let (value, op) = match random.u8(0..11) {
            0 => zeroed(FileOp::Punch { offset: range.0, bytes: range.1 }),
            1 => zeroed(FileOp::Zero { offset: range.0, bytes: range.1 }),
            2 => (model[index], Some(FileOp::Allocate { offset: range.0, bytes: range.1 })),
            10 => zeroed(FileOp::Clear { offset: range.0, bytes: range.1 }),
            3 if step % 16 == 0 => (model[index], Some(FileOp::Datasync)),
            4..8 => (step as u8, None),
            _ => {
                channel.read(offset, &mut block).unwrap();
                let expected = model[index];
                assert!(block.iter().all(|byte| *byte == expected), "step {step}: {expected}");
                continue;
            }
        };
        match op {
            Some(op) => channel.run(op).unwrap(),
            None => {
                block.fill(value);
                channel.write(offset, &mut block).unwrap();
            }
        }
        model[index] = value;
    }
    model
}
