//! Files whose writes are kept back, concurrent with others that open, remove, replace and change
//! them. Each test is a former attack that succeeded.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::{TempDir, wait_until};

use crate::fixture::{Mount, sync};

/// Longer than a test.
pub const LAZY: [&str; 3] = ["--write-back", "1000s,64M", "--lazy-close"];

/// Makes a file, and writes to it.
pub fn written(mount: &Mount, name: &str, text: &str) -> File {
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mount.at(name))
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Returns the content of a file at the source.
pub fn at_source(mount: &Mount, name: &str) -> String {
    fs::read_to_string(mount.source(name)).unwrap()
}

/// Returns the content of a file on the source's server.
pub fn behind(mount: &Mount, name: &str) -> String {
    fs::read_to_string(mount.beside("behind").join(name)).unwrap()
}

/// Returns the conflict files.
pub fn conflicts(folder: PathBuf) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    all.filter(|it| it.to_string_lossy().contains(".conflict-")).collect()
}

/// Returns the content of an open file.
pub fn text_of(file: &File) -> String {
    let mut bytes = vec![0; 1000];
    let read = file.read_at(&mut bytes, 0).unwrap();
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// The unlink itself changes the change time, which was taken for a change by others.
#[test]
fn a_file_that_is_removed_while_it_is_written_is_no_conflict() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let file = written(&mount, "it", "text");
    fs::remove_file(mount.at("it")).unwrap();
    let synced = sync(&file);
    assert_eq!(text_of(&file), "text", "{synced:?}");
    assert!(synced.is_ok(), "{synced:?}");
    assert_eq!(conflicts(mount.source(".")), Vec::<PathBuf>::new());
}

/// The same when written back by time: the usual temporary file lost its bytes.
#[test]
fn a_temporary_file_without_a_name_keeps_its_bytes() {
    let Some(mount) = Mount::start(&["--write-back", "200ms,64M"]) else { return };
    let file = written(&mount, "it", "text");
    fs::remove_file(mount.at("it")).unwrap();
    file.write_all_at(b"TEXT", 4).unwrap();
    wait_until("it is old", || mount.stat("dirty_bytes") == 0);
    assert_eq!(text_of(&file), "textTEXT");
    assert_eq!(conflicts(mount.source(".")), Vec::<PathBuf>::new());
}

#[test]
fn who_has_a_removed_file_open_for_reading_reads_on() {
    let Some(mount) = Mount::start(&["--write-back", "200ms,64M", "--lazy-close"]) else { return };
    let writer = written(&mount, "it", "text");
    let reader = File::open(mount.at("it")).unwrap();
    fs::remove_file(mount.at("it")).unwrap();
    drop(writer);
    // Pages in the kernel's cache do not count.
    wait_until("it is old", || mount.stat("dirty_bytes") == 0);
    assert_eq!(text_of(&reader), "text");
}

#[test]
fn a_sync_through_an_open_for_reading_is_a_sync() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    drop(written(&mount, "it", "text"));
    sync(&File::open(mount.at("it")).unwrap()).unwrap();
    assert_eq!(at_source(&mount, "it"), "text");
}

#[test]
fn a_question_that_fails_makes_no_conflict() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = written(&mount, "it", "text");
    mount.server().refuse(&[Call::GetAttr, Call::Other, Call::Write], libc::EIO);
    assert!(sync(&file).is_err());
    mount.server().recover();
    let synced = sync(&file);
    assert!(synced.is_ok(), "{synced:?}");
    assert_eq!((behind(&mount, "it").as_str(), mount.stat("conflicts")), ("text", 0));
}

/// If there is no room or no permission for the conflict file, the second try took the others' file
/// for ours.
#[test]
fn what_others_wrote_is_not_written_over_when_ours_cannot_be_kept_beside() {
    let Some(mount) = Mount::over_server(&LAZY) else { return };
    let file = written(&mount, "it", "ours");
    thread::sleep(Duration::from_millis(20));
    fs::write(mount.beside("behind/it"), "theirs").unwrap();
    mount.server().refuse(&[Call::Create, Call::Other], libc::ENOSPC);
    let first = sync(&file);
    assert!(first.is_err());
    let second = sync(&file);
    assert_eq!(behind(&mount, "it"), "theirs", "{first:?} {second:?}");
}

/// The same without a fault: a user who may write the file but not its folder.
#[test]
fn what_others_wrote_is_not_written_over_by_a_user_who_cannot_write_the_folder() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    mount.write_source("it", "");
    fs::set_permissions(mount.source("it"), PermissionsExt::from_mode(0o666)).unwrap();
    fs::set_permissions(mount.source("."), PermissionsExt::from_mode(0o755)).unwrap();
    let mut child = Command::new("setpriv")
        .args(["--reuid=54321", "--regid=54321", "--clear-groups", "sh", "-c"])
        .args(["printf ours >>\"$1\"", "sh"])
        .arg(mount.at("it"))
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(mount.stat("dirty_bytes"), 4);
    mount.write_source("it", "theirs");
    // A file that the daemon makes for the user is owned by the user, with normal permissions.
    fs::set_permissions(mount.source("it"), PermissionsExt::from_mode(0o4666)).unwrap();
    let file = File::options().write(true).open(mount.at("it")).unwrap();
    assert!(sync(&file).is_err());
    assert_eq!(at_source(&mount, "it"), "theirs");
    let beside = fs::metadata(&conflicts(mount.source("."))[0]).unwrap();
    assert_eq!((beside.uid(), beside.gid(), beside.mode() & 0o7777), (54321, 54321, 0o600));
}

const TROUBLE: [&str; 7] =
    ["--write-back", "1000s,64M", "--lazy-close", "--window", "100ms", "--source-timeout", "500ms"];

/// The attributes of a dirty file were those of the source at its open: the kernel truncated the
/// file, and the next append overwrote written data.
#[test]
fn an_append_while_the_source_is_down_loses_nothing() {
    let Some(mount) = Mount::over_server(&TROUBLE) else { return };
    drop(written(&mount, "it", ""));
    let mut file = File::options().append(true).open(mount.at("it")).unwrap();
    file.write_all(b"first").unwrap();
    mount.server().stop();
    let size = fs::metadata(mount.at("it")).map(|it| it.len());
    thread::sleep(Duration::from_millis(300));
    wait_until("it is down", || mount.stats()["source"] == "down" || file.metadata().is_err());
    let later = file.metadata().map(|it| it.len());
    file.write_all(b"second").unwrap();
    mount.server().release();
    sync(&file).unwrap();
    assert_eq!(behind(&mount, "it"), "firstsecond", "{size:?} {later:?}");
}

/// An older open that is written through does not know of another one whose writes are kept back.
#[test]
fn a_write_through_an_older_open_is_seen_and_is_no_conflict() {
    let options = [&LAZY[..], &["--modes", "plain"]].concat();
    let Some(mount) = Mount::start(&options) else { return };
    mount.write_source("it", "some old text");
    let old = File::options().write(true).open(mount.at("it")).unwrap();
    let new = written(&mount, "it", "abcdef");
    old.write_all_at(b"XY", 0).unwrap();
    let read = mount.read("it");
    let synced = sync(&new);
    assert_eq!(read, "XYcdef", "{synced:?}");
    assert_eq!(at_source(&mount, "it"), "XYcdef");
    assert!(synced.is_ok(), "{synced:?}");
}

/// The same in all modes: a second writer of a file that has got the set-group-id bit.
#[test]
fn a_second_writer_of_a_set_id_file_is_seen_and_is_no_conflict() {
    let Some(mount) = Mount::start(&LAZY) else { return };
    let first = written(&mount, "it", "abcdef");
    fs::set_permissions(mount.at("it"), PermissionsExt::from_mode(0o4755)).unwrap();
    first.write_all_at(b"A", 0).unwrap();
    let second = File::options().write(true).open(mount.at("it")).unwrap();
    second.write_all_at(b"Z", 5).unwrap();
    let read = mount.read("it");
    let synced = sync(&first);
    assert_eq!(read, "AbcdeZ", "{synced:?}");
    assert!(synced.is_ok(), "{synced:?}");
}

/// A copy that has a name in the folder was changed in place.
#[test]
fn a_kill_leaves_no_copy_that_the_source_never_had() {
    let folder = TempDir::new().unwrap();
    let dir = folder.path().to_str().unwrap();
    let options = [&LAZY[..], &["--dir", dir, "--size", "64M"]].concat();
    let Some(mut mount) = Mount::start(&options) else { return };
    mount.copied("it", vec![b'x'; 100_000]);
    let names = || fs::read_dir(folder.path().join("flowstone-copies")).unwrap().count();
    wait_until("the copy is on the disk", || names() == 1);
    let file = File::options().write(true).open(mount.at("it")).unwrap();
    file.write_all_at(b"dirty", 0).unwrap();
    mount.daemon().kill().unwrap();
    drop(file);
    mount.begin();
    let (here, there) = (mount.read("it"), at_source(&mount, "it"));
    assert!(here == there, "{} here, {} at the source", &here[..8], &there[..8]);
}

/// A file that is open for writing and clean hid the writes of others.
#[test]
fn an_open_sees_what_others_wrote_though_a_clean_writer_has_the_file_open() {
    let Some(mount) = Mount::start(&[&LAZY[..], &["--window", "100ms"]].concat()) else { return };
    mount.copied("it", "old");
    let writer = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    mount.write_source("it", "new and longer");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(fs::metadata(mount.at("it")).unwrap().len(), 14);
    assert_eq!(mount.read("it"), "new and longer");
    drop(writer);
}

/// The first write after that took an earlier change for a conflict.
#[test]
fn a_write_after_what_others_wrote_is_no_conflict() {
    let Some(mount) = Mount::start(&[&LAZY[..], &["--window", "100ms"]].concat()) else { return };
    let writer = written(&mount, "it", "ours");
    sync(&writer).unwrap();
    thread::sleep(Duration::from_millis(20));
    mount.write_source("it", "theirs");
    thread::sleep(Duration::from_millis(200));
    assert_eq!(mount.read("it"), "theirs");
    writer.write_all_at(b"T", 0).unwrap();
    let synced = sync(&writer);
    assert!(synced.is_ok(), "{synced:?}");
    assert_eq!(at_source(&mount, "it"), "Theirs");
}

/// Kept-back writes did not clear the bit: the daemon writes them as the superuser.
#[test]
fn a_write_that_is_kept_back_takes_the_set_user_id_bit_away() {
    let Some(mount) = Mount::start(&["--write-back", "1000s,64M"]) else { return };
    mount.write_source("it", "");
    fs::set_permissions(mount.source("it"), PermissionsExt::from_mode(0o777)).unwrap();
    let script = "exec 3>>\"$1\"; echo >\"$2.open\"; while ! [ -e \"$2\" ]; do sleep .02; done; \
                  printf evil >&3";
    let outside = mount.beside("go");
    fs::set_permissions(mount.beside("."), PermissionsExt::from_mode(0o777)).unwrap();
    let mut child = Command::new("setpriv")
        .args(["--reuid=54321", "--regid=54321", "--clear-groups", "sh", "-c", script, "sh"])
        .arg(mount.at("it"))
        .arg(&outside)
        .spawn()
        .unwrap();
    wait_until("it is open", || mount.beside("go.open").exists());
    fs::set_permissions(mount.at("it"), PermissionsExt::from_mode(0o4777)).unwrap();
    fs::write(&outside, "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(at_source(&mount, "it"), "evil");
    let mode = fs::metadata(mount.source("it")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o777, "{mode:o}");
}
