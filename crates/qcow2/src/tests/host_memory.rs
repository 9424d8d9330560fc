//! Tests of the file that a session leaves in the memory of its host: it tells boots apart where
//! neither clock nor number does, and holds the changes themselves where the image is on a server.

use std::path::PathBuf;

use flowstone_block::Op;
use flowstone_sim::{Fate, SimDisk};
use flowstone_testkit::skip;

use super::super::redo::HOST_FAILS_TO_SYNC;
use super::fixture::{Guest, checked, contents, extent, new_disk, number};
use super::host::{Host, SECTORS, before_a_restart, killed, set_word, word};

const NUMBER: usize = 1;
const LIVE: usize = 12;

fn flip(redo: &mut [u8], index: usize) {
    let before = word(redo, index);
    set_word(redo, index, before ^ (1 << 7));
}

/// Asserts that readers, checks and the next two daemons use the changes, and that no file of the
/// session remains.
fn assert_is_used(host: &Host, disk: &SimDisk) {
    assert_eq!(host.read(disk)[0], 7);
    let report = host.check(disk, true).unwrap();
    assert!(report.notes[0].contains("1 changes of a killed daemon wait"), "{report:?}");
    let image = host.open(disk);
    assert_eq!(contents(&image)[0], 7);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(8, 8)), 8).unwrap();
    let again = host.kill(disk, 2);
    drop((guest, image));
    let disk = host.bring_back(again);
    let image = host.open(&disk);
    let found = contents(&image);
    assert_eq!((found[0], found[8 * 512]), (7, 8));
    drop(image);
    // An interrupted commit may leave leaks.
    assert_eq!(checked(&disk, true).errors, Vec::<String>::new());
    assert_eq!((host.redos(), host.lives()), (vec![], vec![]));
}

/// Asserts that the image is refused to all, and that the refusal names both remedies.
fn assert_is_refused(host: &Host, disk: &SimDisk, why: &str) {
    let refusal = host.refusal(disk);
    assert!(refusal.contains(why), "{refusal}");
    assert!(refusal.contains("serve the image where it was served, or, if"), "{refusal}");
    assert_eq!(host.check(disk, true).unwrap_err().to_string(), refusal);
    std::fs::remove_file(host.redo()).unwrap();
    host.check(disk, true).unwrap();
    assert_eq!(contents(&host.open(disk))[0], 0);
}

/// The clock of a host without a battery begins at the same time at each boot: an equal start time
/// was trusted, and a redo file was replayed after a power cut.
#[test]
fn a_boot_that_began_at_the_same_time_is_not_taken_for_the_same_one() {
    let host = Host::with_memory();
    let disk = killed(&host, |redo| flip(redo, NUMBER));
    host.forget();
    assert_is_refused(&host, &disk, "has them, and is of another host, or of another boot");
}

/// The clock was set forward by hours, in a container that gets another number at each start: this
/// was taken for a restart, and completed writes were given up.
#[test]
fn changes_survive_another_boot_number_beside_another_time() {
    let host = Host::with_memory();
    let disk = killed(&host, before_a_restart);
    assert_is_used(&host, &disk);
}

/// The file was left in another container's memory.
#[test]
fn the_number_of_the_boot_is_enough_without_what_was_left_in_memory() {
    let host = Host::with_memory();
    let disk = killed(&host, |_| {});
    host.forget();
    assert_is_used(&host, &disk);
}

/// Another host has taken the session over, and was restarted; this one was up throughout.
#[test]
fn what_another_daemon_of_the_session_has_left_proves_nothing() {
    let host = Host::with_memory();
    let disk = killed(&host, |redo| {
        before_a_restart(redo);
        flip(redo, LIVE);
    });
    assert_eq!(host.read(&disk)[0], 0);
    assert_eq!(contents(&host.open(&disk))[0], 0);
}

/// A file on a disk survives a power cut.
#[test]
fn nothing_is_left_where_it_would_outlive_the_boot() {
    let folder = tempfile::tempdir().unwrap();
    if rustix::fs::statfs(folder.path()).unwrap().f_type == 0x0102_1994 {
        skip(format_args!("{} lies in memory", folder.path().display()));
        return;
    }
    let missing = folder.path().join("missing");
    let folders = [folder.path(), &missing].map(|it| it.to_str().unwrap().to_owned().into());
    let host = Host::new().leaving_in(&folders);
    let disk = killed(&host, |redo| assert_eq!(word(redo, LIVE), 0));
    assert_eq!(host.lives(), Vec::<PathBuf>::new());
    assert!(!missing.exists());
    assert_is_used(&host, &disk);
}

/// A mapping of a file on FUSE or NFS blocked pollers when the server stopped.
#[test]
fn a_redo_file_on_a_server_is_not_mapped_and_completed_writes_survive_a_kill() {
    let host = Host::of_a_server();
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_mapped = |path: &PathBuf| maps.contains(path.to_str().unwrap());
    assert_eq!((is_mapped(&host.redo()), is_mapped(&host.lives()[0])), (false, true));
    drop(image);
    for change in [|_: &mut [u8]| {}, before_a_restart] {
        let host = Host::of_a_server();
        let disk = killed(&host, change);
        assert_is_used(&host, &disk);
    }
}

/// The file in memory knows of a commit that the file on the server does not.
#[test]
fn changes_since_the_last_commit_survive_a_kill_where_a_server_keeps_the_image() {
    let host = Host::of_a_server();
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    for stamp in 1..5 {
        guest.run(Op::Write(extent(0, 8)), stamp).unwrap();
        guest.run(Op::Flush, 0).unwrap();
    }
    guest.run(Op::Write(extent(0, 8)), 9).unwrap();
    guest.run(Op::Write(extent(80, 8)), 9).unwrap();
    let killed = host.kill(&disk, 1);
    drop((guest, image));
    let disk = host.bring_back(killed);
    let found = contents(&host.open(&disk));
    assert_eq!((found[0], found[80 * 512]), (9, 9));
    assert_eq!(checked(&disk, true).errors, Vec::<String>::new());
}

#[test]
fn changes_in_memory_that_is_gone_are_given_up_after_a_restart_alone() {
    let host = Host::of_a_server();
    let disk = killed(&host, before_a_restart);
    host.forget();
    assert_eq!(host.read(&disk)[0], 0);
    assert_eq!(contents(&host.open(&disk))[0], 0);
    assert_eq!(host.redos(), Vec::<PathBuf>::new());
    for change in [|_: &mut [u8]| {}, |redo: &mut [u8]| flip(redo, NUMBER)] {
        let host = Host::of_a_server();
        let disk = killed(&host, change);
        host.forget();
        assert_is_refused(&host, &disk, "says that they are in the memory of its host");
    }
}

/// As on a block device: flushed writes are there.
#[test]
fn without_memory_an_image_on_a_server_has_no_redo_file() {
    let host = Host::of_a_server().leaving_in(&[]);
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    assert_eq!((number(&disk, 88), host.redos()), (0, vec![]));
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 7).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    let killed = disk.kill_at(disk.now(), &mut Fate::seeded(1));
    drop((guest, image));
    assert_eq!(contents(&host.open(&killed))[0], 7);
}

/// The file stayed when a later step failed.
#[test]
fn a_session_that_cannot_begin_leaves_nothing_behind() {
    for host in [Host::with_memory(), Host::of_a_server()] {
        HOST_FAILS_TO_SYNC.set(true);
        let image = host.open(&new_disk(SECTORS, 4096));
        HOST_FAILS_TO_SYNC.set(false);
        assert_eq!((host.redos(), host.lives()), (vec![], vec![]));
        drop(image);
    }
}

/// Its changes were lost, and nothing was reported until the image was refused after a kill.
#[test]
fn an_image_whose_redo_file_is_made_shorter_goes_on_without() {
    let host = Host::with_memory();
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 6).unwrap();
    let redo = std::fs::File::options().write(true).open(host.redo()).unwrap();
    redo.set_len(0).unwrap();
    guest.run(Op::Write(extent(0, 8)), 7).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    guest.run(Op::Write(extent(80, 8)), 8).unwrap();
    guest.run(Op::Flush, 0).unwrap();
    assert_eq!(number(&disk, 88), 0);
    assert_eq!((host.redos(), host.lives()), (vec![], vec![]));
    let killed = disk.kill_at(disk.now(), &mut Fate::seeded(1));
    drop((guest, image));
    let found = contents(&host.open(&killed));
    assert_eq!((found[0], found[80 * 512]), (7, 8));
    assert_eq!(checked(&disk, true).errors, Vec::<String>::new());
}
