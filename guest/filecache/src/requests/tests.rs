//! Tests of which thread answers a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;
use crate::options::Options;
use crate::source::Source;
use crate::store::Store;

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);
const READERS: usize = 8;
/// A task that does not exist: its caller has been killed.
const KILLED: u32 = u32::MAX;

/// A reply that is sent to a test.
struct ToTest(Sender<Result<u32>>);

impl Reply for ToTest {
    fn fail(self, error: Errno) {
        let _ = self.0.send(Err(error));
    }
}

/// An outcome that records that it was undone.
struct Noted(u32, Arc<AtomicBool>);

impl Outcome for Noted {
    fn undo(self, _: &Files) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// A gate that work waits for.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    bell: Condvar,
    undone: Arc<AtomicBool>,
}

impl Gate {
    fn open(&self) {
        *lock(&self.is_open) = true;
        self.bell.notify_all();
    }

    fn pass(&self) {
        let is_open = lock(&self.is_open);
        drop(self.bell.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

fn requests(fails_when_down: bool) -> (tempfile::TempDir, Arc<Requests>) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::for_test(folder.path());
    options.trouble.fails_when_down = fails_when_down;
    let source = Source::open(folder.path()).unwrap();
    let files = Arc::new(Files::new(&options, source, Store::memory(), None).unwrap());
    let requests = Requests::start(files, READERS, options.trouble).unwrap();
    (folder, requests)
}

/// Makes a request, on a thread that reads requests, that takes until the gate is open.
fn ask(requests: &Arc<Requests>, gate: &Arc<Gate>, task: u32) -> Receiver<Result<u32>> {
    let (to, answer) = channel();
    let (requests, gate) = (requests.clone(), gate.clone());
    thread::spawn(move || {
        let work = move |_: &Files, _: &Owed<ToTest>, ask| match ask {
            Ask::Source => {
                gate.pass();
                Some(Ok(Noted(7, gate.undone.clone())))
            }
            Ask::Memory => None,
        };
        let send = |_: &Files, reply: ToTest, Noted(value, _)| {
            let _ = reply.0.send(Ok(value));
        };
        requests.ask(task, ToTest(to), work, send);
    });
    answer
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < SOON, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn two_readers_and_no_more_than_the_pool_are_in_calls_and_the_rest_waits() {
    let (_folder, requests) = requests(false);
    let gate = Arc::<Gate>::default();
    let all: Vec<_> = (0..30).map(|_| ask(&requests, &gate, 0)).collect();
    wait_for("all are taken", || lock(&requests.table).open.len() == 30);
    wait_for("the pool has begun", || {
        let table = lock(&requests.table);
        let began = table.open.values().filter(|open| open.began.is_some()).count();
        began == READERS - FREE_READERS + POOL_MAX
    });
    {
        let table = lock(&requests.table);
        assert_eq!(table.inline, READERS - FREE_READERS);
        assert_eq!((table.pool, table.queue.len()), (POOL_MAX, 30 - 6 - POOL_MAX));
    }
    gate.open();
    for answer in all {
        assert_eq!(answer.recv_timeout(SOON), Ok(Ok(7)));
    }
    wait_for("nothing is left", || lock(&requests.table).open.is_empty());
    assert_eq!(lock(&requests.table).inline, 0);
}

#[test]
fn who_is_killed_is_answered_and_what_comes_later_is_undone() {
    let (_folder, requests) = requests(false);
    let gate = Arc::<Gate>::default();
    let killed = ask(&requests, &gate, KILLED);
    let other = ask(&requests, &gate, 0);
    assert_eq!(killed.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    assert!(!gate.undone.load(Ordering::Relaxed));
    gate.open();
    assert_eq!(other.recv_timeout(SOON), Ok(Ok(7)));
    wait_for("it is undone", || gate.undone.load(Ordering::Relaxed));
}

#[test]
fn one_that_is_killed_in_the_queue_never_asks() {
    let (_folder, requests) = requests(false);
    let (gate, never) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let others: Vec<_> = (0..22).map(|_| ask(&requests, &gate, 0)).collect();
    wait_for("all are busy", || {
        let table = lock(&requests.table);
        table.queue.is_empty()
            && table.open.values().all(|open| open.began.is_some())
            && table.open.len() == 22
    });
    let killed = ask(&requests, &never, KILLED);
    assert_eq!(killed.recv_timeout(SOON), Ok(Err(Errno::INTR)));
    gate.open();
    for other in others {
        assert_eq!(other.recv_timeout(SOON), Ok(Ok(7)));
    }
    wait_for("nothing is left", || lock(&requests.table).open.is_empty());
}

#[test]
fn a_source_that_is_down_fails_what_only_it_can_answer_if_that_is_wanted() {
    let (_folder, requests) = requests(true);
    let gate = Arc::<Gate>::default();
    requests.files.hearing.set(SourceState::Down);
    let answer = ask(&requests, &gate, 0);
    assert_eq!(answer.recv_timeout(SOON), Ok(Err(Errno::IO)));
    gate.open();
}

#[test]
fn a_panic_costs_one_answer() {
    let (_folder, requests) = requests(false);
    let (to, answer) = channel();
    let it = requests.clone();
    let panicked = thread::spawn(move || {
        let work = |_: &Files, _: &Owed<ToTest>, _| -> Option<Result<()>> { panic!("on purpose") };
        it.ask(0, ToTest(to), work, |_, _, ()| {});
    });
    assert!(panicked.join().is_err());
    assert!(answer.recv_timeout(SOON).is_err(), "the reply is dropped");
    assert_eq!(lock(&requests.table).inline, 0);
    let gate = Arc::<Gate>::default();
    gate.open();
    assert_eq!(ask(&requests, &gate, 0).recv_timeout(SOON), Ok(Ok(7)));
}

/// A copy is closed without the source: a source that is down would seem to be up.
#[test]
fn a_close_is_no_answer_of_the_source() {
    let (_folder, requests) = requests(false);
    let (to, done) = channel();
    let work = move |_: &Files, _: &Owed<Nobody>, _| {
        let _ = to.send(());
        Some(Ok(()))
    };
    requests.ask(0, Nobody, work, |_, _, ()| {});
    done.recv_timeout(SOON).unwrap();
    wait_for("it is over", || lock(&requests.table).open.is_empty());
    assert_eq!(requests.files.hearing.since_last(), (false, false));
}
