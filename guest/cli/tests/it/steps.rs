//! Steps that protect data and that no other test covers: each test is for a mutant that survived,
//! or would have (docs/testing.md).

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flowstone_testkit::fuse::Call;
use flowstone_testkit::{TempDir, wait_until};

use crate::fixture::{Mount, sync};
use crate::kept_back::{LAZY, behind, written};

const NEVER: &str = "1000s";

/// Returns the content of an open file. Attributes are not requested: that would compare the copy.
fn bytes_of(mount: &Mount, name: &str, bytes: usize) -> Vec<u8> {
    let mut read = vec![0; bytes];
    File::open(mount.at(name)).unwrap().read_exact_at(&mut read, 0).unwrap();
    read
}

/// A copy that mixes two versions is invalid, even if it is trusted.
#[test]
fn a_file_that_changes_while_it_is_copied_is_not_kept() {
    const BYTES: usize = 4 << 20;
    let Some(mount) = Mount::over_server(&["--trust", NEVER, "--window", NEVER]) else { return };
    mount.write_source("it", vec![b'o'; BYTES]);
    (0..2).for_each(|_| assert_eq!(mount.read("it").len(), BYTES));
    // The next reader is the one who copies it.
    mount.server().keep(Call::Read);
    mount.server().wait_until_kept();
    fs::write(mount.beside("behind/it"), vec![b'n'; BYTES]).unwrap();
    mount.server().recover();
    wait_until("it is copied", || mount.stat("fills") > 0);
    assert!(bytes_of(&mount, "it", BYTES).iter().all(|byte| *byte == b'n'), "it is half of each");
}

/// A conflict within the same second as another one, or a file that already has the name.
#[test]
fn a_conflict_takes_no_name_that_is_there() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    mount.write_source("it", "");
    let file = written(&mount, "it", "ours");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let taken: Vec<_> = (now..now + 100).map(|second| format!("it.conflict-{second}")).collect();
    taken.iter().for_each(|name| mount.write_source(name, "another's"));
    mount.write_source("it", "theirs");
    assert_eq!(sync(&file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    for name in &taken {
        assert_eq!(fs::read_to_string(mount.source(name)).unwrap(), "another's");
    }
    let ours = |name: &&String| mount.source(&format!("{name}-1")).exists();
    let name = taken.iter().find(ours).expect("it is kept beside");
    assert_eq!(fs::read_to_string(mount.source(&format!("{name}-1"))).unwrap(), "ours");
}

/// There is no room for all of it at the source.
#[test]
fn what_cannot_be_kept_beside_leaves_no_half() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = written(&mount, "it", "ours");
    thread::sleep(Duration::from_millis(20));
    fs::write(mount.beside("behind/it"), "theirs").unwrap();
    mount.server().refuse(&[Call::Write], libc::ENOSPC);
    assert!(sync(&file).is_err());
    let names = || fs::read_dir(mount.beside("behind")).unwrap().count();
    assert_eq!(names(), 1, "a half is beside it");
    mount.server().recover();
    assert_eq!(sync(&file).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    assert_eq!((names(), behind(&mount, "it").as_str()), (2, "theirs"));
}

/// A lock has all dirty bytes flushed first; more are written meanwhile.
#[test]
fn what_is_written_while_a_file_is_brought_to_the_source_for_good_gets_there() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = written(&mount, "it", "first");
    let other = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    thread::scope(|scope| {
        mount.server().keep(Call::Write);
        let locks = scope.spawn(|| other.lock().unwrap());
        mount.server().wait_until_kept();
        file.write_all_at(b"more", 5).unwrap();
        mount.server().recover();
        locks.join().unwrap();
    });
    assert_eq!(behind(&mount, "it"), "firstmore");
    assert_eq!((mount.read("it").as_str(), mount.stat("conflicts")), ("firstmore", 0));
}

/// A copy from an earlier life is not valid until the source has been asked.
#[test]
fn a_copy_that_was_never_compared_in_this_life_does_not_answer_for_a_source_that_is_down() {
    let folder = TempDir::new().unwrap();
    let place = ["--dir", folder.path().to_str().unwrap(), "--size", "64M", "--window", NEVER];
    let fails = ["--source-timeout", "500ms", "--when-down", "fail"];
    let Some(mut mount) = Mount::over_server(&[&place[..], &fails].concat()) else { return };
    mount.copied("it", "old");
    let names = || fs::read_dir(folder.path().join("flowstone-copies")).unwrap().count();
    wait_until("it is on the disk", || names() == 1);
    mount.daemon().kill().unwrap();
    mount.begin();
    assert_eq!(fs::metadata(mount.at("it")).unwrap().len(), 3);
    fs::write(mount.beside("behind/it"), "new").unwrap();
    mount.server().stop();
    mount.wait_until_down();
    let mut text = String::new();
    let read = File::open(mount.at("it")).and_then(|mut file| file.read_to_string(&mut text));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(libc::EIO), "{text}");
    mount.server().release();
    wait_until("the source is up", || mount.stats()["source"] == "up");
    assert_eq!(mount.read("it"), "new");
}

#[test]
fn a_copy_is_trusted_for_no_longer_than_that() {
    let Some(mount) = Mount::start(&["--trust", "1s", "--window", NEVER]) else { return };
    mount.copied("it", "first");
    mount.write_source("it", "other");
    thread::sleep(Duration::from_millis(1100));
    assert_eq!(bytes_of(&mount, "it", 5), b"other");
}
