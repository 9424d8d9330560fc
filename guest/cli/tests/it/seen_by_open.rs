//! Calls to the source by an open, and the attributes that it has seen.

use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use flowstone_testkit::fuse::Call;
use flowstone_testkit::skip;
use rustix::fs::{FallocateFlags, fallocate};

use crate::fixture::Mount;
use crate::kept_back::LAZY;

/// Names and attributes stay valid.
const LASTING: [&str; 2] = ["--window", "1000s"];

/// Reads an open file, which leaves its access time unknown.
fn read(file: &File) {
    file.read_at(&mut [0; 100], 0).unwrap();
}

fn opened(mount: &Mount) -> File {
    let file = File::open(mount.at("it")).unwrap();
    read(&file);
    file
}

/// The same call was made up to four times.
#[test]
fn an_open_of_a_copy_and_its_attributes_are_one_look_at_the_source() {
    let Some(mount) = Mount::over_server(&LASTING) else { return };
    mount.copied("it", "text");
    if mount.stat("opens/copy") == 0 {
        return skip(
            "this kernel or this machine has no FUSE passthrough (Linux 6.9, CAP_SYS_ADMIN)",
        );
    }
    let calls =
        || [Call::Lookup, Call::Open, Call::GetAttr].map(|it| mount.server().count(it).calls);
    let before = calls();
    const OPENS: u64 = 10;
    for _ in 0..OPENS {
        assert_eq!(opened(&mount).metadata().unwrap().len(), 4);
    }
    let after = calls();
    let asked: Vec<_> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    assert_eq!(asked[..2], [OPENS, OPENS], "{asked:?}");
    // The attributes of the folder and of the file determine who may look a name up and open it.
    // Then they are compared with the copy's.
    assert!(asked[2] <= 3 * OPENS, "{asked:?}");
}

/// The list of a folder and the space of the source.
#[test]
fn what_changes_nothing_is_no_change() {
    let Some(mount) = Mount::over_server(&LASTING) else { return };
    mount.copied("it", "text");
    fs::write(mount.beside("behind/other"), "text").unwrap();
    let file = opened(&mount);
    if mount.stat("opens/copy") == 0 {
        return skip(
            "this kernel or this machine has no FUSE passthrough (Linux 6.9, CAP_SYS_ADMIN)",
        );
    }
    let asked_after = |what: &dyn Fn()| {
        drop(opened(&mount));
        what();
        read(&file);
        let before = mount.server().count(Call::GetAttr).calls;
        file.metadata().unwrap();
        mount.server().count(Call::GetAttr).calls - before
    };
    assert_eq!(asked_after(&|| ()), 0);
    assert_eq!(asked_after(&|| assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 2)), 0);
    assert_eq!(asked_after(&|| assert!(rustix::fs::statfs(mount.root()).is_ok())), 0);
}

type Shown = (u32, u64, u32, u32, u64, (i64, i64), (i64, i64));

fn shown(it: &Metadata) -> Shown {
    let times = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
    (it.mode(), it.nlink(), it.uid(), it.gid(), it.len(), times.0, times.1)
}

/// A file with a copy, by its two names, and an unused name.
struct Names {
    one: PathBuf,
    two: PathBuf,
    free: PathBuf,
}

type Change = (&'static str, fn(&Names, &File));

/// All ways of changing a file through the mount, by its path, its other name and an open file.
const CHANGES: [Change; 16] = [
    ("chmod", |it, _| fs::set_permissions(&it.one, Permissions::from_mode(0o600)).unwrap()),
    ("chmod by the other name", |it, _| {
        fs::set_permissions(&it.two, Permissions::from_mode(0o640)).unwrap();
    }),
    ("chown", |it, _| chown(&it.two, Some(7), Some(8)).unwrap()),
    ("fchmod", |_, file| file.set_permissions(Permissions::from_mode(0o611)).unwrap()),
    ("futimens", |_, file| {
        file.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH)).unwrap();
    }),
    ("truncate", |it, _| writer(&it.two).set_len(2).unwrap()),
    ("truncate to more", |it, _| writer(&it.one).set_len(1000).unwrap()),
    ("link", |it, _| fs::hard_link(&it.one, &it.free).unwrap()),
    ("unlink", |it, _| fs::remove_file(&it.one).unwrap()),
    ("unlink of the other name", |it, _| fs::remove_file(&it.two).unwrap()),
    ("rename", |it, _| fs::rename(&it.two, &it.free).unwrap()),
    ("rename over it", |it, _| {
        fs::write(&it.free, "another").unwrap();
        fs::rename(&it.free, &it.two).unwrap();
    }),
    ("write", |it, _| writer(&it.two).write_all_at(b"longer than it was", 2).unwrap()),
    ("open that empties", |it, _| drop(File::create(&it.two).unwrap())),
    ("fallocate", |it, _| {
        fallocate(writer(&it.two), FallocateFlags::empty(), 0, 5000).unwrap();
    }),
    ("copy_file_range", |it, file| {
        let to = writer(&it.one);
        rustix::fs::copy_file_range(file, Some(&mut 0), &to, Some(&mut 4), 4).unwrap();
    }),
];

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// After any operation through the mount, `fstat` of an open copy shows its effect.
fn attributes_after_a_change_are_those_of_the_change(options: &[&str]) {
    let options = [&LASTING, options].concat();
    let Some(mount) = Mount::with_passthrough(&options) else { return };
    let name = |kind: &str, number: usize| format!("{kind}{number}");
    for number in 0..CHANGES.len() {
        mount.write_source(&name("one", number), "text");
        fs::hard_link(mount.source(&name("one", number)), mount.source(&name("two", number)))
            .unwrap();
    }
    let files: Vec<_> = (0..CHANGES.len()).map(|number| name("one", number)).collect();
    mount.wait_for_copies(&files);
    // In parallel: operations on one file do not affect another.
    thread::scope(|scope| {
        for (number, (what, change)) in CHANGES.iter().enumerate() {
            let mount = &mount;
            scope.spawn(move || {
                let at = |kind: &str| mount.at(&name(kind, number));
                let names = Names { one: at("one"), two: at("two"), free: at("free") };
                let truth = File::open(mount.source(&name("one", number))).unwrap();
                let file = File::open(&names.one).unwrap();
                read(&file);
                file.metadata().unwrap();
                read(&file);
                change(&names, &file);
                read(&file);
                let (here, there) = (file.metadata().unwrap(), truth.metadata().unwrap());
                assert_eq!(shown(&here), shown(&there), "{what}");
            });
        }
    });
}

#[test]
fn attributes_after_a_change_are_those_of_the_change_through_the_source() {
    attributes_after_a_change_are_those_of_the_change(&[]);
}

#[test]
fn attributes_after_a_change_are_those_of_the_change_where_writes_are_kept_back() {
    attributes_after_a_change_are_those_of_the_change(&LAZY[..2]);
}

/// An open after a change at the source sees it, and so does an older open.
#[test]
fn attributes_are_not_older_than_what_another_open_has_seen() {
    let Some(mount) = Mount::with_passthrough(&LASTING) else { return };
    mount.copied("it", "text");
    let file = opened(&mount);
    mount.write_source("it", "longer text");
    let second = File::open(mount.at("it")).unwrap();
    assert_eq!(second.metadata().unwrap().len(), 11);
    assert_eq!(file.metadata().unwrap().len(), 11);
}

/// A change has begun, an open looks at the file, and then the change is made.
#[test]
fn a_look_while_a_change_is_on_its_way_says_nothing_after_it() {
    let Some(mount) = Mount::over_server(&LASTING) else { return };
    fs::write(mount.beside("behind/it"), "text").unwrap();
    fs::hard_link(mount.beside("behind/it"), mount.beside("behind/other")).unwrap();
    mount.wait_for_copy("it");
    fs::metadata(mount.at("other")).unwrap();
    let file = thread::scope(|scope| {
        mount.server().keep(Call::Lookup);
        let remove = scope.spawn(|| fs::remove_file(mount.at("other")).unwrap());
        mount.server().wait_until_kept();
        let file = opened(&mount);
        assert_eq!(file.metadata().unwrap().nlink(), 2);
        mount.server().recover();
        remove.join().unwrap();
        file
    });
    read(&file);
    assert_eq!(file.metadata().unwrap().nlink(), 1);
}
