//! What each layer does to the disk below it.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use flowstone_block::{
    BlockingDisk, Completion, Doorbells, Errno, Extent, IoVec, Layer, Op, OpKind, QueueDepth,
    Request, Sector, SectorCount,
};
use flowstone_layers::{Delay, Errors, Log, Mem, Stats, Verify};

fn mem() -> Arc<Mem> {
    Arc::new(Mem::new(SectorCount::new(2048)).unwrap())
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(Sector::new(start), SectorCount::new(count)).unwrap()
}

#[test]
fn a_memory_disk_keeps_what_is_written_and_zeroes_what_is_discarded() {
    let mem = mem();
    let mut disk = BlockingDisk::new(&*mem).unwrap();
    let mut data = vec![0x5a; 64 * 512];
    disk.write(Sector::new(3), &mut data).unwrap();
    disk.run(Op::Discard(extent(5, 40))).unwrap();
    let mut back = vec![0; 64 * 512];
    // Another channel sees the same disk.
    BlockingDisk::new(&*mem).unwrap().read(Sector::new(3), &mut back).unwrap();
    assert!(back[..1024].iter().all(|byte| *byte == 0x5a));
    assert!(back[1024..42 * 512].iter().all(|byte| *byte == 0));
    assert!(back[42 * 512..].iter().all(|byte| *byte == 0x5a));
}

#[test]
fn random_delays_complete_out_of_order_and_lose_nothing() {
    let layer = Delay::new(mem(), "0-5ms".parse().unwrap());
    let mut channel = layer.channel(QueueDepth(64)).unwrap();
    for tag in 0..64 {
        channel.submit(Request::new(Op::Flush, tag));
    }
    channel.kick();
    let mut done: Vec<Completion> = Vec::new();
    while done.len() < 64 {
        channel.reap(&mut done);
        if done.len() < 64 {
            channel.sleep(&Doorbells { fds: &[], deadline: None });
        }
    }
    let tags: Vec<u32> = done.iter().map(|completion| completion.request.tag).collect();
    let mut sorted = tags.clone();
    sorted.sort_unstable();
    assert!(sorted.iter().copied().eq(0..64));
    assert_ne!(tags, sorted, "64 random delays left the order as it was");
}

#[test]
fn a_fixed_delay_takes_its_time() {
    let layer = Delay::new(mem(), "2ms".parse().unwrap());
    let start = Instant::now();
    BlockingDisk::new(&layer).unwrap().run(Op::Flush).unwrap();
    assert!(start.elapsed() >= Duration::from_millis(2));
}

#[test]
fn errors_hit_the_named_operation_at_the_named_rate() {
    let base = Arc::new(Stats::new(mem()));
    let layer = Errors::new(base.clone(), "flush:enospc:3".parse().unwrap());
    let mut disk = BlockingDisk::new(&layer).unwrap();
    let outcomes: Vec<_> = (0..6).map(|_| disk.run(Op::Flush)).collect();
    let failed = Err(Errno::NOSPC);
    assert_eq!(outcomes, [Ok(()), Ok(()), failed, Ok(()), Ok(()), failed]);
    disk.write(Sector::new(0), &mut [0; 512]).unwrap();
    // What failed never reached the disk below.
    assert_eq!(base.counters().read(OpKind::Flush), (4, 0, 0));
    assert_eq!(base.counters().read(OpKind::Write), (1, 512, 0));
}

#[test]
fn the_log_has_a_line_for_each_request_and_each_completion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("requests.log");
    let layer = Log::new(mem(), &path).unwrap();
    let mut disk = BlockingDisk::new(&layer).unwrap();
    disk.write(Sector::new(8), &mut [0; 512]).unwrap();
    disk.run(Op::Flush).unwrap();
    drop(disk);
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains("q0 submit 0 write sectors 8+1 priority 0x0"), "{text}");
    assert!(lines[3].ends_with("q0 finish 0 ok"), "{text}");
}

#[test]
fn verify_passes_good_data_and_catches_a_disk_that_lies() {
    let mem = mem();
    let layer = Verify::new(mem.clone());
    let mut disk = BlockingDisk::new(&layer).unwrap();
    let mut back = [0; 1024];
    disk.write(Sector::new(10), &mut [1; 1024]).unwrap();
    disk.read(Sector::new(10), &mut back).unwrap();
    // Behind the layer's back, the disk changes.
    BlockingDisk::new(&*mem).unwrap().write(Sector::new(11), &mut [2; 512]).unwrap();
    assert_eq!(disk.read(Sector::new(10), &mut back), Err(Errno::IO));
    disk.read(Sector::new(10), &mut back[..512]).unwrap();
    // A discarded sector is not certain to be anything.
    disk.run(Op::Discard(extent(11, 1))).unwrap();
    disk.read(Sector::new(10), &mut back).unwrap();
}

#[test]
fn verify_does_not_judge_a_read_that_races_with_a_write() {
    let layer = Verify::new(Arc::new(Delay::new(mem(), "0-2ms".parse().unwrap())));
    let mut channel = layer.channel(QueueDepth(64)).unwrap();
    let mut buffers: Vec<[u8; 512]> = (0..64).map(|i| [i as u8; 512]).collect();
    for (tag, buffer) in buffers.iter_mut().enumerate() {
        let where_to = extent(tag as u64 / 2 % 2, 1);
        let op = if tag % 2 == 0 { Op::Write(where_to) } else { Op::Read(where_to) };
        let mut request = Request::new(op, tag as u32);
        // SAFETY: the buffers outlive the requests, which all complete below.
        request.memory.push(unsafe { IoVec::of(buffer) });
        channel.submit(request);
    }
    channel.kick();
    let mut done = Vec::new();
    while done.len() < 64 {
        channel.reap(&mut done);
        channel.sleep(&Doorbells {
            fds: &[],
            deadline: Some(Instant::now() + Duration::from_millis(1)),
        });
    }
    assert!(done.iter().all(|completion| completion.outcome.is_ok()));
}
