use std::fs::File;
use std::sync::MutexGuard;

use flowstone_block::{AlignedBuf, IoVec};

use super::*;
use crate::descriptor::FileKind;
use crate::{FileOffset, FileOp, MemoryList};

/// A slow read: 16 GiB of zeroes, into the same memory repeatedly.
const PIECES: usize = 8192;
const PIECE_BYTES: usize = 2 << 20;

/// On a host that starts no threads the queue runs its job itself, and others can use the pool
/// meanwhile.
#[test]
fn a_queue_that_runs_its_own_job_does_not_hold_the_pool() {
    let start = |_| Err(io::Error::from_raw_os_error(libc::EAGAIN));
    let pool = Arc::new(Pool { state: Mutex::default(), work: Condvar::new(), start, cpus: None });
    let zeroes = File::open("/dev/zero").unwrap();
    let file = Arc::new(Descriptors::new(zeroes, None, FileKind::Regular).unwrap());
    let reactor = Reactor::new().unwrap();
    let mut channel = PoolChannel::new(Arc::clone(&pool), Arc::clone(&file), &reactor);
    let mut buffer = AlignedBuf::zeroed(PIECE_BYTES);
    let list: Vec<IoVec> = (0..PIECES)
        // SAFETY: the buffer outlives the request; nothing looks at what it holds.
        .map(|_| unsafe { IoVec::of(&mut buffer) })
        .collect();
    let bytes = (PIECES * PIECE_BYTES) as u64;
    // SAFETY: the list outlives the request.
    let memory = unsafe { MemoryList::new(&list) };
    let op = FileOp::Read { offset: FileOffset::new(0), bytes };
    let reply_to = Arc::clone(&channel.completions);
    let slow = Job { file, request: FileRequest::new(op, memory, 0), reply_to };
    assert!(pool.enqueue(std::iter::once(slow)).is_err());
    let completions = Arc::clone(&channel.completions);
    let begun = std::sync::Barrier::new(2);
    let seen_free = thread::scope(|scope| {
        let others = scope.spawn(|| {
            begun.wait();
            loop {
                // In this order: if the first job is neither queued nor done, it is running.
                let second_is_next = |state: MutexGuard<'_, State>| {
                    state.jobs.front().is_some_and(|job| job.request.tag == 1)
                };
                let is_taken = pool.state.try_lock().is_ok_and(second_is_next);
                if !completions.done.lock().unwrap().is_empty() {
                    return false;
                }
                if is_taken {
                    return true;
                }
                thread::yield_now();
            }
        });
        let op = FileOp::Datasync;
        channel.submit(FileRequest::new(op, MemoryList::EMPTY, 1));
        begun.wait();
        channel.kick();
        others.join().unwrap()
    });
    // The slow job was not submitted through the channel; both complete in its completion queue.
    channel.in_flight += 1;
    assert!(seen_free, "the pool was locked while a job ran");
}

/// A range past the end of the address space: the call panics.
const DEADLY: FileOp = FileOp::Punch { offset: FileOffset::new(u64::MAX), bytes: 1 };

fn file_of_zeroes() -> Arc<Descriptors> {
    let file = tempfile::tempfile().unwrap();
    Arc::new(Descriptors::new(file, None, FileKind::Regular).unwrap())
}

/// A panicking thread lost its request and its place in the pool: the queue waited forever, and
/// after sixteen panics the pool had no thread and started none.
#[test]
fn a_request_whose_call_panics_is_answered_and_its_thread_goes_on() {
    const DEATHS: usize = THREADS_MAX + 1;
    let pool = Arc::new(Pool::default());
    let reactor = Reactor::new().unwrap();
    let mut channel = PoolChannel::new(Arc::clone(&pool), file_of_zeroes(), &reactor);
    for tag in 0..DEATHS {
        channel.submit(FileRequest::new(DEADLY, MemoryList::EMPTY, tag));
    }
    channel.submit(FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, DEATHS));
    channel.kick();
    let mut done = Vec::new();
    while done.len() <= DEATHS {
        reactor.sleep(|| channel.next_look());
        channel.reap(&mut done);
    }
    done.sort_by_key(|it: &FileCompletion| it.tag);
    let (sync, dead) = done.split_last().unwrap();
    assert_eq!(sync.outcome, Ok(()));
    // The host may have been asked: a sync among them has failed.
    assert!(dead.iter().all(|it| it.asked && it.outcome == Err(Errno::IO)), "{dead:?}");
    assert!(channel.is_idle());
}

/// The same on the poller's thread, if no other can be started.
#[test]
fn a_queue_that_runs_its_own_job_outlives_a_panic_of_its_call() {
    let start = |_| Err(io::Error::from_raw_os_error(libc::EAGAIN));
    let pool = Arc::new(Pool { state: Mutex::default(), work: Condvar::new(), start, cpus: None });
    let reactor = Reactor::new().unwrap();
    let mut channel = PoolChannel::new(pool, file_of_zeroes(), &reactor);
    channel.submit(FileRequest::new(DEADLY, MemoryList::EMPTY, 5));
    channel.kick();
    let mut done = Vec::new();
    channel.reap(&mut done);
    assert_eq!((done.len(), done[0].tag, done[0].outcome), (1, 5, Err(Errno::IO)));
}

static HAS_THREADS: AtomicBool = AtomicBool::new(false);

/// On a host that starts no threads, with a file server that may have stopped: the queue's own
/// thread called the server, and the disks that share the thread stalled.
#[test]
fn a_server_is_asked_by_no_queues_thread_although_there_is_no_other() {
    let start = |pool: Arc<Pool>| match HAS_THREADS.load(Ordering::Relaxed) {
        false => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        true => thread::Builder::new().spawn(move || pool.serve()).map(drop),
    };
    let pool = Arc::new(Pool { state: Mutex::default(), work: Condvar::new(), start, cpus: None });
    let file = tempfile::tempfile().unwrap();
    let mut file = Descriptors::new(file, None, FileKind::Regular).unwrap();
    file.asks_server = true;
    let reactor = Reactor::new().unwrap();
    let mut channel = PoolChannel::new(Arc::clone(&pool), Arc::new(file), &reactor);
    let mut done = Vec::new();
    channel.submit(FileRequest::new(FileOp::Datasync, MemoryList::EMPTY, 7));
    channel.kick();
    for _ in 0..3 {
        assert!(matches!(channel.next_look(), NextLook::At(_)), "it does not wait for a thread");
        reactor.sleep(|| channel.next_look());
        channel.reap(&mut done);
    }
    assert_eq!((lock(&pool.state).jobs.len(), done.len()), (1, 0));
    HAS_THREADS.store(true, Ordering::Relaxed);
    while done.is_empty() {
        reactor.sleep(|| channel.next_look());
        channel.reap(&mut done);
    }
    assert_eq!(done[0].outcome, Ok(()));
}

/// Regression: threads of a file shared the CPU of the pinned queue that had started them.
#[test]
fn threads_of_a_file_run_where_the_thread_that_opened_it_may() {
    let before = sched_getaffinity(None).unwrap();
    let pool = Pool::default();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap());
    // On a thread of its own, for the affinity of this one.
    let after = thread::spawn(move || {
        sched_setaffinity(None, &one).unwrap();
        pool.unpin();
        sched_getaffinity(None).unwrap()
    });
    assert_eq!(after.join().unwrap(), before);
}
