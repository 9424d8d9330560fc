//! A file on a stopped server must not block the queue's thread, which other disks may share.

use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use flowstone_block::{AlignedBuf, IoVec, QueueContext, QueueDepth};
use flowstone_fileio::{
    Access, DirectChoice, EngineChoice, FileIo, FileOffset, FileOp, FileRequest, HostFile,
    MemoryList, OpenOptions,
};
use flowstone_testkit::fuse::{Call, FuseHost};

const BYTES: u64 = 64 << 10;

struct Place {
    // Declared before the folder, in which it is mounted.
    host: FuseHost,
    image: PathBuf,
    _dir: tempfile::TempDir,
}

fn place() -> Option<Place> {
    let dir = tempfile::tempdir().unwrap();
    let [at, behind] = ["at", "behind"].map(|name| dir.path().join(name));
    std::fs::create_dir(&at).unwrap();
    std::fs::create_dir(&behind).unwrap();
    let host = FuseHost::mount_or_skip(&at, &behind)?;
    let image = at.join("disk.raw");
    std::fs::write(&image, vec![1; BYTES as usize]).unwrap();
    Some(Place { host, image, _dir: dir })
}

fn open(image: &Path, engine: EngineChoice, direct: DirectChoice) -> HostFile {
    let options = OpenOptions { engine, direct, ..OpenOptions::new(Access::Write) };
    options.open(image).unwrap()
}

/// Does all that a queue's thread does for a file. Calls `free` when it could go on to another
/// disk, and returns the completions in the end.
fn serve(file: &HostFile, free: impl Fn()) -> usize {
    let context = QueueContext::alone(QueueDepth(8)).unwrap();
    let mut channel = file.channel(&context).unwrap();
    let mut buffer = AlignedBuf::zeroed(8192);
    let (first, second) = buffer.split_at_mut(4096);
    // SAFETY: the memory outlives the requests.
    let [read, write] = [first, second].map(|part| [unsafe { IoVec::of(part) }]);
    let (offset, bytes) = (FileOffset::new(8192), 4096);
    let empty = MemoryList::EMPTY;
    // SAFETY: the lists outlive the requests.
    let lists = [&read, &write].map(|list| unsafe { MemoryList::new(list) });
    let requests = [
        (FileOp::Read { offset, bytes }, lists[0]),
        (FileOp::Write { offset, bytes, durable: true }, lists[1]),
        (FileOp::Datasync, empty),
        (FileOp::Zero { offset, bytes }, empty),
        (FileOp::Allocate { offset, bytes }, empty),
        (FileOp::Punch { offset, bytes }, empty),
        (FileOp::Clear { offset, bytes }, empty),
    ];
    for (tag, (op, memory)) in requests.into_iter().enumerate() {
        channel.submit(FileRequest::new(op, memory, tag).dont_cache(true));
    }
    let mut done = Vec::new();
    channel.kick();
    channel.reap(&mut done);
    channel.next_look();
    free();
    while done.len() < requests.len() {
        context.reactor.sleep(|| channel.next_look());
        channel.reap(&mut done);
    }
    assert!(done.iter().all(|completion| completion.outcome.is_ok()), "{done:?}");
    done.len()
}

/// A read of a file on FUSE waited in `io_uring_enter` for its server, and the start of a queue for
/// the reply to `open`: all disks of that thread waited with them.
#[test]
fn a_queues_thread_waits_for_no_server() {
    use {DirectChoice as D, EngineChoice as E};
    for (engine, direct) in
        [(E::Auto, D::Auto), (E::Uring, D::Auto), (E::Uring, D::Off), (E::Sync, D::Off)]
    {
        let Some(Place { host, image, _dir }) = place() else { return };
        let file = open(&image, engine, direct);
        host.stop();
        let (free, is_free) = sync_channel(1);
        std::thread::scope(|scope| {
            let queue = scope.spawn(|| serve(&file, || free.send(()).unwrap()));
            let was_free = is_free.recv_timeout(Duration::from_secs(60)).is_ok();
            let held = host.held();
            host.release();
            assert_eq!(queue.join().unwrap(), 7);
            assert!(was_free, "{engine:?} {direct:?}: it waits for {held:?}");
        });
    }
}

/// A queue opened its own description when it started and closed it when it stopped, on a thread
/// that other disks may share; FUSE and NFS contact the server for both.
#[test]
fn a_queue_that_comes_and_goes_asks_no_server() {
    let Some(Place { host, image, _dir }) = place() else { return };
    let file = open(&image, EngineChoice::Auto, DirectChoice::Auto);
    host.stop();
    let (gone, is_gone) = sync_channel(1);
    std::thread::scope(|scope| {
        let queue = scope.spawn(|| {
            let context = QueueContext::alone(QueueDepth(8)).unwrap();
            drop(file.channel(&context).unwrap());
            gone.send(()).unwrap();
        });
        let was_free = is_gone.recv_timeout(Duration::from_secs(60)).is_ok();
        let held = (host.holds(Call::Open), host.holds(Call::Flush));
        host.release();
        queue.join().unwrap();
        assert!(was_free, "it waits: {held:?}");
        assert_eq!(held, (0, 0));
    });
}
