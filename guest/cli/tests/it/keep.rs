//! State that survives a restart: copies in a folder, and the usage history.

use std::fs::{self, FileTimes};
use std::path::Path;
use std::process::Command;

use flowstone_testkit::{HANG, TempDir, wait_until};

use crate::fixture::{Mount, PROGRAM};

const FILES: [&str; 3] = ["one", "two", "three"];

/// Starts a mount whose copies are in a folder, with copies of three files whose content is their
/// name.
fn kept(folder: &Path) -> Option<Mount> {
    let options = ["--dir", folder.to_str().unwrap(), "--size", "64M"];
    let mount = Mount::start(&options)?;
    FILES.iter().for_each(|name| mount.write_source(name, vec![b'x'; 100_000]));
    mount.wait_for_copies(&FILES);
    wait_until("copies are on the disk", || names(folder) == FILES.len());
    Some(mount)
}

fn names(folder: &Path) -> usize {
    fs::read_dir(folder.join("flowstone-copies")).unwrap().count()
}

fn end(mount: &mut Mount, is_killed: bool) {
    if is_killed {
        mount.daemon().kill().unwrap();
    } else {
        assert!(mount.daemon().terminate(HANG).unwrap().success());
    }
}

#[test]
fn copies_in_a_folder_answer_after_a_restart_and_after_a_kill() {
    for is_killed in [false, true] {
        let folder = TempDir::new().unwrap();
        let Some(mut mount) = kept(folder.path()) else { return };
        end(&mut mount, is_killed);
        mount.begin();
        assert_eq!(mount.stat("cached_files"), 3);
        for name in FILES {
            assert_eq!(mount.read(name).len(), 100_000);
        }
        assert_eq!((mount.stat("hits"), mount.stat("misses")), (3, 0), "{}", mount.stats());
        assert_eq!(mount.stat("fills"), 0, "nothing came from the source");
        assert_eq!(mount.stat("opens/source"), 0);
    }
}

/// The same size, and the old modification time: only the change time differs.
#[test]
fn what_changed_while_no_daemon_ran_is_never_served_old() {
    for is_killed in [false, true] {
        let folder = TempDir::new().unwrap();
        let Some(mut mount) = kept(folder.path()) else { return };
        end(&mut mount, is_killed);
        let modified = fs::metadata(mount.source("one")).unwrap().modified().unwrap();
        mount.write_source("one", vec![b'y'; 100_000]);
        let file = fs::File::options().append(true).open(mount.source("one")).unwrap();
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        fs::rename(mount.source("two"), mount.source("three")).unwrap();
        mount.begin();
        assert!(mount.read("one").bytes().all(|byte| byte == b'y'));
        assert_eq!(mount.stat("hits"), 0);
        assert!(fs::metadata(mount.at("two")).is_err());
        wait_until("the old copy is gone", || names(folder.path()) < 3);
    }
}

#[test]
fn with_trust_a_copy_of_an_earlier_life_is_compared_before_it_is_trusted() {
    let folder = TempDir::new().unwrap();
    let options = ["--dir", folder.path().to_str().unwrap(), "--size", "64M", "--trust", "1000s"];
    let Some(mut mount) = Mount::start(&options) else { return };
    mount.copied("it", "old");
    wait_until("it is on the disk", || names(folder.path()) == 1);
    end(&mut mount, true);
    mount.write_source("it", "new");
    mount.begin();
    assert_eq!(mount.read("it"), "new");
    assert_eq!(mount.stat("unchecked_opens"), 0);
}

#[test]
fn copies_of_another_source_are_removed() {
    let folder = TempDir::new().unwrap();
    let Some(mut mount) = kept(folder.path()) else { return };
    end(&mut mount, false);
    drop(mount);
    let options = ["--dir", folder.path().to_str().unwrap(), "--size", "64M"];
    let Some(mount) = Mount::start(&options) else { return };
    assert_eq!((mount.stat("cached_files"), names(folder.path())), (0, 0));
}

#[test]
fn a_folder_of_copies_is_one_daemons() {
    let folder = TempDir::new().unwrap();
    let Some(mount) = kept(folder.path()) else { return };
    let at = mount.beside("second");
    fs::create_dir(&at).unwrap();
    let output = Command::new(PROGRAM)
        .args(["cache", "--source"])
        .arg(mount.source(""))
        .arg("--mount")
        .arg(&at)
        .arg("--dir")
        .arg(folder.path())
        .args(["--size", "1M"])
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("another cache uses it; give each cache a folder of its own"), "{said}");
    assert_eq!(names(folder.path()), 3);
}

/// Starts a mount with a history of three used files, and without copies in a folder.
fn remembered(state: &Path) -> Option<Mount> {
    let options = ["--state", state.to_str().unwrap(), "--epoch", "200ms"];
    let mount = Mount::start(&options)?;
    fs::create_dir(mount.source("folder")).unwrap();
    let paths = FILES.map(|name| format!("folder/{name}"));
    paths.iter().for_each(|path| mount.write_source(path, vec![b'x'; 100_000]));
    mount.wait_for_copies(&paths);
    Some(mount)
}

#[test]
fn what_was_used_before_a_restart_is_fetched_ahead_by_its_path() {
    let folder = TempDir::new().unwrap();
    let Some(mut mount) = remembered(&folder.path().join("state")) else { return };
    end(&mut mount, false);
    mount.begin();
    wait_until("it is fetched", || mount.stat("prefetched_bytes") == 300_000);
    for name in FILES {
        mount.read(&format!("folder/{name}"));
    }
    assert_eq!((mount.stat("hits"), mount.stat("misses")), (3, 0), "{}", mount.stats());
    assert_eq!((mount.stat("fills"), mount.stat("evictions")), (3, 0));
}

#[test]
fn a_damaged_history_costs_one_line_and_the_history() {
    let folder = TempDir::new().unwrap();
    let state = folder.path().join("state");
    let Some(mut mount) = remembered(&state) else { return };
    end(&mut mount, false);
    let file = fs::read_dir(&state).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 1;
    fs::write(&file, bytes).unwrap();
    mount.begin();
    let said = mount.daemon().stderr();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("left aside as"), "{said}");
    assert_eq!(mount.read("folder/one").len(), 100_000);
    assert_eq!(mount.stat("prefetched_bytes"), 0);
}
