use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use flowstone_block::ErrorKind;

use super::*;

fn begin(disks: &Disks, name: &str) -> u32 {
    let config = DiskConfig::new(name, Path::new(&format!("/{name}.sock")));
    match disks.begin(&config, Origin::File) {
        Ok(Begun::Opens(number)) => number,
        other => panic!("{other:?}"),
    }
}

/// Regression: it listened until the process ended, and the guest's writes were not flushed.
#[test]
fn a_disk_that_comes_too_late_does_not_start() {
    let disks = Disks::default();
    let number = begin(&disks, "late");
    assert_eq!(disks.opening(), ["late"]);
    disks.unless_stopping(|| assert!(disks.table.try_lock().is_err(), "it may begin to stop"));
    assert!(disks.stop().unwrap().is_empty());
    disks.unless_stopping(|| unreachable!());
    assert!(!disks.begin_start(number) && !disks.end_if_empty());
    assert!(disks.opening().is_empty() && disks.serving().is_empty());
}

/// A daemon that stops does not report readiness.
#[test]
fn who_waits_for_disks_does_not_wait_for_one_that_failed_nor_when_the_daemon_stops() {
    let disks = Disks::default();
    let [failed, hung] = ["failed", "hung"].map(|name| begin(&disks, name));
    disks.give_up(failed);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| disks.wait_for_most(Duration::ZERO));
        // None is served yet, however late it is.
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        assert!(disks.stop().unwrap().is_empty());
        assert_eq!(waiter.join().unwrap(), None);
    });
    let disks = Disks::default();
    let number = begin(&disks, "hung");
    assert_eq!(number, hung - 1);
    disks.give_up(number);
    assert_eq!(disks.wait_for_most(Duration::ZERO), Some(Vec::new()));
}

#[test]
fn a_disk_whose_opening_panics_is_not_waited_for() {
    let disks = Disks::default();
    let number = begin(&disks, "dead");
    let opened = disks.open(number, "dead", || {
        assert!(!disks.begin_start(number), "the mistake");
        Ok(())
    });
    assert!(opened.is_err() && disks.failed().len() == 1);
    assert!(disks.stop().unwrap().is_empty());
    disks.wait_for_late_ones().unwrap();
}

/// Its socket may lie on a file system that hangs, so no lock is held meanwhile.
#[test]
fn a_disk_that_starts_is_waited_for_at_the_end() {
    let disks = Disks::default();
    let number = begin(&disks, "slow");
    assert!(disks.begin_start(number));
    assert_eq!(disks.opening(), ["slow"]);
    assert!(disks.stop().unwrap().is_empty());
    let has_stopped = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            has_stopped.store(true, Ordering::Relaxed);
            // Its socket could not be bound.
            let failed = || Err(Error::busy("slow", "another daemon listens", "stop that"));
            disks.open(number, "slow", failed).unwrap_err();
        });
        assert!(disks.wait_for_late_ones().is_err(), "its socket");
        assert!(has_stopped.load(Ordering::Relaxed));
    });
}

/// Regression: SIGTERM between the mark of an image and the start of its disk left the image as
/// after a kill; a qcow2 image was refused once it was moved.
#[test]
fn an_image_that_is_marked_is_waited_for_and_one_that_is_not_is_given_up() {
    let disks = Disks::default();
    let [marked, removed, read] = ["marked", "removed", "read"].map(|name| begin(&disks, name));
    let progress = |number| disks.progress_of(number);
    progress(marked).begin_writing("image").unwrap();
    progress(removed).begin_writing("image").unwrap();
    let hung = progress(read);
    assert!(matches!(disks.begin_removal("removed", true), Ok(Removal::Done)));
    assert!(disks.stop().unwrap().is_empty());
    assert_eq!(hung.begin_writing("image").unwrap_err().kind(), ErrorKind::Busy);
    let closed = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for number in [marked, removed] {
            let (disks, closed) = (&disks, &closed);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                closed.fetch_add(1, Ordering::Relaxed);
                disks.open(number, "", || Ok(())).unwrap();
            });
        }
        disks.wait_for_late_ones().unwrap();
        assert_eq!(closed.load(Ordering::Relaxed), 2);
    });
}

/// Regression: it was missing in `stats`, and its log line did not name it.
#[test]
fn a_disk_that_cannot_be_opened_is_known_by_its_name_and_the_reason() {
    let disks = Disks::default();
    let number = begin(&disks, "vm2");
    let opened = disks
        .open(number, "vm2", || Err(Error::invalid("/images/vm2.raw", "no such file", "make it")));
    assert!(opened.is_err());
    let [failed] = &disks.failed()[..] else { panic!("one disk") };
    assert_eq!(failed.name.as_deref(), Some("vm2"));
    let text = failed.failure.clone().into_error().to_string();
    assert!(text.starts_with("/images/vm2.raw: no such file; "), "{text}");
}

/// Regression: the failure of the only disk was not reported when a signal came just then.
#[test]
fn a_daemon_ends_because_of_a_signal_or_because_nothing_can_be_served() {
    let [stopped, failed] = [(); 2].map(|()| Disks::default());
    assert!(stopped.stop().is_some() && !stopped.end_if_empty() && stopped.stop().is_some());
    assert!(failed.end_if_empty() && failed.stop().is_none() && failed.end_if_empty());
}

/// Regression: each add and remove of a disk left a thread in the daemon for as long as the disk's
/// image was locked.
#[test]
fn so_many_disks_are_removed_while_they_are_opened_and_no_more() {
    let disks = Disks::default();
    let name = |index: usize| format!("d{index}");
    let numbers: Vec<u32> =
        (0..=removal::CANCELLED_MAX).map(|index| begin(&disks, &name(index))).collect();
    let failed = begin(&disks, "failed");
    let fail = || Err(Error::invalid("/images/a.raw", "no such file", "make it"));
    disks.open(failed, "failed", fail).unwrap_err();
    let remove = |name: &str| disks.begin_removal(name, false);
    let is_done = |name: &str| matches!(remove(name).unwrap(), Removal::Done);
    assert!((0..removal::CANCELLED_MAX).all(|index| is_done(&name(index))));
    let last = name(removal::CANCELLED_MAX);
    let said = disks.check_removal(&last, true).unwrap_err().error.to_string();
    assert_eq!(said, remove(&last).err().unwrap().error.to_string());
    let why = "disk remove d32: 32 removed disks are still being opened; see the log";
    assert!(said.starts_with(why), "{said}");
    assert_eq!(disks.opening(), [&*last]);
    // Other disks can be removed, and the names of removed ones are free.
    assert!(is_done("failed"));
    assert!(begin(&disks, "d0") > numbers[removal::CANCELLED_MAX]);
    // One of them finishes.
    disks.open(numbers[5], "d5", || Ok(())).unwrap();
    assert!(is_done(&last) && remove("d0").is_err());
}

/// Regression: its name was taken for ever, and each further removal of it had a waiting thread.
#[test]
fn a_disk_whose_stop_panics_is_gone() {
    let disks = Disks::default();
    let number = begin(&disks, "dead");
    assert!(disks.begin_start(number));
    let Ok(Removal::Wait(leaving)) = disks.begin_removal("dead", false) else { panic!() };
    let hour = Instant::now() + Duration::from_secs(3600);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| disks.gone_by(leaving, hour));
        let stops = scope.spawn(|| disks.end(number, Arc::new(()), |()| panic!("the mistake"), Ok));
        assert!(stops.join().is_err());
        assert!(waits.join().unwrap().unwrap().is_ok());
    });
    begin(&disks, "dead");
}

/// Regression: a second `disk remove` said that it was removed, and the daemon exited with 0.
#[test]
fn a_close_that_fails_reaches_all_that_wait_for_it() {
    let disks = Disks::default();
    let [removed, opened] = ["removed", "opened"].map(|name| begin(&disks, name));
    assert!(disks.begin_start(removed));
    disks.progress_of(opened).begin_writing("image").unwrap();
    let Ok(Removal::Wait(leaving)) = disks.begin_removal("removed", false) else { panic!() };
    assert!(disks.stop().unwrap().is_empty());
    let failed = || Err(Error::host("close image", "Input/output error", "check the host"));
    assert!(disks.end(removed, Arc::new(()), |()| (), |()| failed()).is_err());
    let seen = disks.gone_by(leaving, Instant::now()).unwrap().unwrap_err().to_string();
    assert_eq!(seen, "close image: Input/output error; check the host");
    assert!(disks.open(opened, "opened", failed).is_err());
    assert_eq!(disks.wait_for_late_ones().unwrap_err().to_string(), seen);
}

#[test]
fn a_removal_does_not_wait_for_a_thread_that_has_panicked_with_the_disk() {
    let disks = Disks::default();
    let (number, disk) = (begin(&disks, "used"), Arc::new(()));
    assert!(disks.begin_start(number));
    let theirs = Arc::clone(&disk);
    std::thread::scope(|scope| {
        let (stopped, is_stopped) = std::sync::mpsc::channel();
        let uses = scope.spawn(move || {
            is_stopped.recv().unwrap();
            assert_eq!(Arc::strong_count(&theirs), 1, "the mistake");
        });
        disks.end(number, disk, |()| stopped.send(()).unwrap(), Ok).unwrap();
        assert!(uses.join().is_err());
    });
    begin(&disks, "used");
}

#[test]
fn a_new_disk_replaces_one_that_leaves_if_it_has_its_name_socket_or_image() {
    let disks = Disks::default();
    let with = |name: &str, socket: &str, image: Option<&str>| {
        let mut config = DiskConfig::new(name, Path::new(socket));
        config.stack.image = image.map(Into::into);
        config
    };
    for (old, image) in [("old", Some("/a.raw")), ("null", None)] {
        let old = with(old, &format!("/{old}.sock"), image);
        let Ok(Begun::Opens(number)) = disks.begin(&old, Origin::File) else { panic!() };
        assert!(disks.begin_start(number));
    }
    let again = [
        with("old", "/new.sock", None),
        with("new", "/old.sock", None),
        with("new", "/new.sock", Some("/a.raw")),
    ];
    let others = [with("new", "/new.sock", None), with("new", "/new.sock", Some("/b.raw"))];
    let replaces = |new: &DiskConfig| disks.replaces_one_that_leaves(new);
    assert!(!again.iter().any(replaces), "none leaves");
    for name in ["old", "null"] {
        assert!(matches!(disks.begin_removal(name, false), Ok(Removal::Wait(_))));
    }
    assert!(again.iter().all(replaces) && !others.iter().any(replaces));
}
