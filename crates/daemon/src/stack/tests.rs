//! Whole stacks on a host that does not answer.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use flowstone_block::{
    AlignedBuf, Channel, Extent, IoVec, Op, QueueContext, QueueDepth, Request, Sector,
};
use flowstone_cache::CacheSize;
use flowstone_fileio::{LockPatience, open_host_file};
use flowstone_formats::{CreateOptions, create};
use flowstone_testkit::fuse::FuseHost;

use super::*;
use crate::config::DiskConfig;

const BLOCK_SECTORS: u64 = 8;
const BLOCK_BYTES: usize = 4096;
/// Sequential reads, enough to start read-ahead.
const READS: usize = 48;

/// Builds a stack with every layer, and optionally the cache.
fn build(args: &mut StackArgs, has_cache: bool) -> Stack {
    args.layers.layers = ["stats", "verify", "delay=0ms", "error=write:eio:1000000"]
        .map(|spec| spec.parse().unwrap())
        .to_vec();
    args.zeroes.detect_zeroes = DetectZeroes::On;
    let cache = has_cache.then_some(CacheSize(32 << 20));
    let cache = CacheArgs { cache, ..CacheArgs::default() };
    let shared =
        Shared::new(open_host_file, &SharedArgs { cache, ..SharedArgs::default() }, &[]).unwrap();
    Stack::build(&shared, 0, "served", None, args, Progress::default()).unwrap()
}

/// The channels to and from a queue's thread.
struct Turns<'host> {
    host: &'host FuseHost,
    retires: Sender<bool>,
}

/// Runs a queue with flushes and reads in flight when its host stops, and retires it then.
fn end_a_queue(stack: &Stack, turns: &Turns<'_>) {
    let context = QueueContext::alone(QueueDepth(64)).unwrap();
    let context =
        QueueContext { origin: flowstone_block::Origin::Queue { disk: 0, queue: 0 }, ..context };
    let mut queue = stack.top.channel(&context).unwrap();
    let mut buffer = AlignedBuf::zeroed(READS * BLOCK_BYTES);
    let mut blocks = buffer.chunks_exact_mut(BLOCK_BYTES).enumerate();
    let mut begin = |queue: &mut dyn Channel, count: usize| {
        for (number, block) in blocks.by_ref().take(count) {
            let start = Sector::new(number as u64 * BLOCK_SECTORS);
            let extent = Extent::new(start, SectorCount::new(BLOCK_SECTORS)).unwrap();
            let mut request = Request::new(Op::Read(extent), number as u32);
            // SAFETY: the buffer outlives the channel, which is dropped first.
            request.memory.push(unsafe { IoVec::of(block) });
            queue.submit(request);
            queue.kick();
        }
    };
    let mut done = Vec::new();
    begin(&mut *queue, READS / 2);
    while done.len() < READS / 2 {
        context.reactor.sleep(|| queue.next_look());
        queue.reap(&mut done);
    }
    turns.host.stop();
    begin(&mut *queue, READS / 2);
    queue.submit(Request::new(Op::Flush, 63));
    queue.kick();
    turns.retires.send(queue.retire()).unwrap();
    turns.host.release();
    while !queue.retire() {
        context.reactor.sleep(|| queue.next_look());
    }
    drop(queue);
    turns.retires.send(true).unwrap();
}

/// Regression: dropping a channel waited for the host and blocked the other disks of its thread.
#[test]
fn no_layer_retires_before_the_host_has_given_everything_back() {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    let Some(host) = FuseHost::mount_or_skip(&at, &behind) else { return };
    for name in ["a.raw", "b.qcow2", "c.flow"] {
        // The cache's own I/O must not hide that of the image.
        for has_cache in [true, false] {
            ends_in_time(&host, &at, name, has_cache);
            std::fs::remove_file(at.join(name)).unwrap();
        }
    }
}

fn ends_in_time(host: &FuseHost, at: &Path, name: &str, has_cache: bool) {
    let path = at.join(name);
    let format = Format::choose(None, &path).unwrap();
    create(&path, format, 64 << 20, &CreateOptions::default(), LockPatience::NONE).unwrap();
    let mut config = DiskConfig::new(name, Path::new("unused")).stack;
    config.image = Some(path);
    let stack = build(&mut config, has_cache);
    let filled = flowstone_block::BlockingDisk::new(&*stack.top)
        .unwrap()
        .write(Sector::new(0), &mut vec![7; READS * BLOCK_BYTES]);
    assert_eq!(filled, Ok(()));
    // Its reads must not be answered from memory.
    let stack = {
        drop(stack);
        build(&mut config, has_cache)
    };
    let (retires, heard) = channel();
    thread::scope(|scope| {
        scope.spawn(|| end_a_queue(&stack, &Turns { host, retires }));
        let next = || heard.recv_timeout(Duration::from_secs(60));
        let (early, end) = (next(), next());
        host.release();
        assert_eq!((early, end), (Ok(false), Ok(true)), "{name} {has_cache}");
    });
}
