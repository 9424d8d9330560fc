//! Tests of the reactor's guarantees, with a ring and without one.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::{Fd, Timespec};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{FileType, Mode, mknodat};

use crate::{NextLook, Reactor, RingUser, Watch};

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(20);

fn event() -> Arc<File> {
    Arc::new(File::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()))
}

fn ring_it(event: &File) {
    rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
}

fn clear(event: &File) {
    rustix::io::read(event, &mut [0; 8]).unwrap();
}

/// Makes a reactor that sleeps in `poll(2)`, and one that sleeps in its ring.
fn both() -> [(Reactor, Option<RingUser>); 2] {
    let (plain, with_ring) = (Reactor::new().unwrap(), Reactor::new().unwrap());
    let user = RingUser::new(&with_ring, 8).unwrap();
    [(plain, None), (with_ring, Some(user))]
}

/// Sleeps until `over`, which only a wake-up makes true.
fn sleep_until(reactor: &Reactor, mut over: impl FnMut() -> bool) {
    let start = Instant::now();
    while !over() {
        reactor.sleep(|| NextLook::At(Instant::now() + LONG));
        assert!(start.elapsed() < LONG, "nothing ended the sleep");
    }
}

/// Returns the length of a sleep that only its deadline ends.
fn nap(reactor: &Reactor) -> Duration {
    let start = Instant::now();
    reactor.sleep(|| NextLook::At(start + SHORT));
    start.elapsed()
}

fn push_nop(user: &mut RingUser, mark: u32) {
    // SAFETY: it names nothing.
    unsafe { user.push(opcode::Nop::new().build(), mark) };
}

#[test]
fn a_deadline_ends_a_sleep_and_nothing_ends_it_before() {
    for (reactor, _user) in both() {
        let _watches: Vec<Watch> = (0..9).map(|_| Watch::new(&reactor, event())).collect();
        for _ in 0..3 {
            assert!(nap(&reactor) >= SHORT);
        }
    }
}

#[test]
fn what_can_go_on_does_not_sleep() {
    for (reactor, _user) in both() {
        let start = Instant::now();
        reactor.sleep(|| NextLook::Now);
        reactor.sleep(|| NextLook::OnWake.min(NextLook::At(start + LONG)).min(NextLook::Now));
        assert!(start.elapsed() < LONG);
    }
}

/// The number was once limited to four, and a fifth caused a panic.
#[test]
fn any_number_of_descriptors_end_a_sleep_each() {
    for (reactor, _user) in both() {
        let events: Vec<Arc<File>> = (0..200).map(|_| event()).collect();
        let watches: Vec<Watch> =
            events.iter().map(|event| Watch::new(&reactor, Arc::clone(event))).collect();
        for n in [199, 0, 57, 57] {
            ring_it(&events[n]);
            sleep_until(&reactor, || watches[n].take_ready());
            clear(&events[n]);
            assert!(watches.iter().all(|watch| !watch.take_ready()), "one was rung");
        }
    }
}

/// A draining queue leaves its notifications unread. They must not keep its thread awake.
#[test]
fn a_descriptor_that_stays_readable_ends_one_sleep() {
    for (reactor, _user) in both() {
        let event = event();
        let watch = Watch::new(&reactor, Arc::clone(&event));
        ring_it(&event);
        reactor.sleep(|| NextLook::At(Instant::now() + LONG));
        assert!(nap(&reactor) >= SHORT, "its owner has not looked");
        assert!(watch.take_ready());
        // The watch was checked, and the descriptor is still readable.
        sleep_until(&reactor, || watch.take_ready());
    }
}

#[test]
fn a_watch_that_is_gone_ends_no_sleep_and_its_place_is_used_again() {
    for (reactor, _user) in both() {
        let old = event();
        for _ in 0..50 {
            let watch = Watch::new(&reactor, Arc::clone(&old));
            nap_shortly(&reactor);
            drop(watch);
            let fresh = event();
            let other = Watch::new(&reactor, Arc::clone(&fresh));
            ring_it(&old);
            nap_shortly(&reactor);
            assert!(!other.take_ready(), "a late completion of the watch before");
            ring_it(&fresh);
            sleep_until(&reactor, || other.take_ready());
            clear(&old);
        }
    }
}

fn nap_shortly(reactor: &Reactor) {
    reactor.sleep(|| NextLook::At(Instant::now() + Duration::from_micros(200)));
}

/// Each value is stored before the waker is called: the owner sees every one of them, and sleeps in
/// between.
#[test]
fn no_wake_up_of_another_thread_is_lost() {
    for (reactor, _user) in both() {
        let (waker, left, seen) = (reactor.waker(), AtomicBool::new(false), AtomicBool::new(true));
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    while !seen.swap(false, Ordering::AcqRel) {
                        thread::yield_now();
                    }
                    left.store(true, Ordering::Release);
                    waker.wake();
                }
            });
            for _ in 0..20_000 {
                sleep_until_left(&reactor, &left);
                seen.store(true, Ordering::Release);
            }
        });
    }
}

fn sleep_until_left(reactor: &Reactor, left: &AtomicBool) {
    let start = Instant::now();
    while !left.swap(false, Ordering::AcqRel) {
        reactor.sleep(|| match left.load(Ordering::Acquire) {
            true => NextLook::Now,
            false => NextLook::At(start + LONG),
        });
        assert!(start.elapsed() < LONG, "a wake-up was lost");
    }
}

#[test]
fn each_user_of_a_ring_gets_its_own_completions() {
    let reactor = Reactor::new().unwrap();
    let mut users: Vec<RingUser> = (0..5).map(|_| RingUser::new(&reactor, 8).unwrap()).collect();
    for mark in 0..40 {
        for user in &mut users {
            push_nop(user, mark);
        }
    }
    users[0].submit();
    // The last user's check takes the completions of the others from the ring.
    for n in [4, 0, 1, 2, 3] {
        assert_eq!(users[n].has_mail(), n != 4);
        let mut marks: Vec<u32> = Vec::new();
        while marks.len() < 40 {
            match users[n].next_completion() {
                Some((mark, result)) => {
                    assert_eq!(result, 0);
                    marks.push(mark);
                }
                None => assert!(users[n].bring_out(), "{} of 40 are lost", 40 - marks.len()),
            }
        }
        assert!(marks.into_iter().eq(0..40));
        assert!(users[n].next_completion().is_none());
    }
}

#[test]
fn a_reactor_that_gathers_enters_the_kernel_for_all_users_at_once() {
    let reactor = Reactor::new().unwrap();
    assert!(!reactor.enter(), "it has no ring");
    let mut users: Vec<RingUser> = (0..3).map(|_| RingUser::new(&reactor, 8).unwrap()).collect();
    reactor.gather();
    for user in &mut users {
        push_nop(user, 7);
        user.submit();
        assert!(!user.bring_out() && user.next_completion().is_none());
    }
    assert!(reactor.enter());
    assert!(users.iter_mut().all(|user| user.next_completion() == Some((7, 0))));
    assert!(!reactor.enter(), "nothing is left");
    push_nop(&mut users[0], 8);
    users[0].submit();
    reactor.scatter();
    assert_eq!(users[0].next_completion(), Some((8, 0)), "the end of it submits the rest");
    push_nop(&mut users[1], 9);
    users[1].submit();
    assert_eq!(users[1].next_completion(), Some((9, 0)), "users submit again");
}

#[test]
fn a_sleep_starts_what_has_been_submitted_and_ends_with_its_completion() {
    let reactor = Reactor::new().unwrap();
    let mut user = RingUser::new(&reactor, 8).unwrap();
    push_nop(&mut user, 7);
    reactor.sleep(|| NextLook::At(Instant::now() + LONG));
    assert_eq!(user.next_completion(), Some((7, 0)));
    // Also if there turns out to be no time to sleep.
    push_nop(&mut user, 8);
    reactor.sleep(|| NextLook::Now);
    user.bring_out();
    assert_eq!(user.next_completion(), Some((8, 0)));
}

/// A user that is dropped while another one has submissions in flight does not affect them.
#[test]
fn a_user_that_waits_for_the_kernel_loses_nothing_of_others() {
    let reactor = Reactor::new().unwrap();
    let (mut slow, mut other) =
        (RingUser::new(&reactor, 8).unwrap(), RingUser::new(&reactor, 8).unwrap());
    let time = Timespec::new().nsec(20_000_000);
    // SAFETY: the time outlives the request, which completes below.
    unsafe { slow.push(opcode::Timeout::new(&raw const time).build(), 1) };
    push_nop(&mut other, 2);
    let ended = loop {
        if let Some(ended) = slow.next_completion() {
            break ended;
        }
        slow.wait();
    };
    assert_eq!(ended, (1, -libc::ETIME));
    drop(slow);
    assert_eq!(other.next_completion(), Some((2, 0)));
    // Its slot is used again.
    let mut third = RingUser::new(&reactor, 8).unwrap();
    push_nop(&mut third, 3);
    third.wait();
    assert_eq!(third.next_completion(), Some((3, 0)));
    assert_eq!(other.next_completion(), None);
}

/// The ring is created while descriptors are being watched.
#[test]
fn a_ring_that_comes_late_watches_what_was_watched() {
    let reactor = Reactor::new().unwrap();
    let event = event();
    let watch = Watch::new(&reactor, Arc::clone(&event));
    assert!(nap(&reactor) >= SHORT);
    let mut user = RingUser::new(&reactor, 8).unwrap();
    ring_it(&event);
    sleep_until(&reactor, || watch.take_ready());
    // A poll of the user's own is not mistaken for the watch's.
    let poll = opcode::PollAdd::new(Fd(event.as_raw_fd()), libc::POLLIN as u32).build();
    // SAFETY: the event outlives the poll, which completes below.
    unsafe { user.push(poll, 9) };
    user.wait();
    assert_eq!(user.next_completion().map(|(mark, _)| mark), Some(9));
    assert!(!watch.take_ready());
}

#[test]
fn a_user_whose_completion_has_come_does_not_wait() {
    let reactor = Reactor::new().unwrap();
    let (mut first, mut second) =
        (RingUser::new(&reactor, 8).unwrap(), RingUser::new(&reactor, 8).unwrap());
    push_nop(&mut first, 1);
    first.submit();
    second.bring_out();
    assert_eq!(second.next_completion(), None);
    assert!(first.has_mail());
    let never = event();
    // SAFETY: the descriptor outlives the request, which completes below.
    unsafe {
        second.push(opcode::PollAdd::new(Fd(never.as_raw_fd()), libc::POLLIN as u32).build(), 2);
    };
    let (over, is_over) = std::sync::mpsc::channel();
    let ends_it = Arc::clone(&never);
    // Ends a wait that would last forever.
    let watch = thread::spawn(move || {
        let waits_on = is_over.recv_timeout(LONG).is_err();
        ring_it(&ends_it);
        waits_on
    });
    first.wait();
    over.send(()).unwrap();
    assert!(!watch.join().unwrap(), "it waited for another one's");
    assert_eq!(first.next_completion(), Some((1, 0)));
    while second.next_completion().is_none() {
        second.wait();
    }
}

#[test]
fn a_watch_that_is_gone_lets_go_of_its_descriptor() {
    for (reactor, _user) in both() {
        let event = event();
        let watch = Watch::new(&reactor, Arc::clone(&event));
        nap_shortly(&reactor);
        drop(watch);
        let start = Instant::now();
        while Arc::strong_count(&event) > 1 && start.elapsed() < LONG {
            nap_shortly(&reactor);
        }
        assert_eq!(Arc::strong_count(&event), 1);
    }
}

/// 24 queues that wrote into holes had 121 kernel worker threads, and at the limit of processes a
/// neighbour could start none. Opening a pipe without a writer blocks its worker.
#[test]
fn a_ring_has_four_workers_for_each_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mode = Mode::from_raw_mode(0o600);
    mknodat(rustix::fs::CWD, &path, FileType::Fifo, mode, 0).unwrap();
    let reactor = Reactor::new().unwrap();
    let mut user = RingUser::new(&reactor, 64).unwrap();
    for _ in 0..32 {
        let open = opcode::OpenAt::new(Fd(libc::AT_FDCWD), name.as_ptr()).build();
        // SAFETY: the name outlives the completions, which are taken below.
        unsafe { user.push(open.flags(io_uring::squeue::Flags::ASYNC), 0) };
    }
    user.submit();
    let start = Instant::now();
    while workers_of_this_thread() < 4 {
        assert!(start.elapsed() < 3 * LONG, "{} workers", workers_of_this_thread());
        thread::yield_now();
    }
    // More workers would be started at once.
    thread::sleep(5 * SHORT);
    let workers = workers_of_this_thread();
    let _both_ends = File::options().read(true).write(true).open(&path).unwrap();
    for _ in 0..32 {
        while user.next_completion().is_none() {
            user.wait();
        }
    }
    assert_eq!(workers, 4);
}

/// Counts the kernel worker threads of this thread, which are named after it.
fn workers_of_this_thread() -> usize {
    let name = format!("iou-wrk-{}\n", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
    names.filter(|it| it.as_ref().is_ok_and(|it| *it == name)).count()
}
