//! Files opened by a writer while they are changed at the source from here: the source's answer to
//! the open is outdated when it arrives. The changed bytes were not read, and the change was taken
//! for one by others (seen once, in 400 rounds on a busy machine).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;

use flowstone_testkit::fuse::Call;

use crate::fixture::{Mount, sync};
use crate::kept_back::{LAZY, written};

/// Opens an empty file for writing, and holds the source's answer while an older writer changes the
/// file. Then both writers' bytes must be in place.
fn open_beside(options: &[&str], change: impl FnOnce(&Mount, &File), expected: &[u8], name: &str) {
    let Some(mount) = Mount::over_server(options) else { return };
    let first = written(&mount, "it", "");
    let opens = || File::options().read(true).write(true).open(mount.at("it")).unwrap();
    let second = thread::scope(|scope| {
        mount.server().keep(Call::Open);
        let second = scope.spawn(opens);
        mount.server().wait_until_kept();
        // The look at the opened file is the last one.
        mount.server().keep(Call::GetAttr);
        mount.server().wait_until_kept();
        change(&mount, &first);
        assert!(!second.is_finished());
        mount.server().recover();
        second.join().unwrap()
    });
    second.write_all_at(b"second", 5000).unwrap();
    let mut whole = expected.to_vec();
    whole.resize(5000, 0);
    whole.extend(b"second");
    let (here, synced) = (fs::read(mount.at(name)).unwrap(), sync(&second));
    let there = fs::read(mount.beside("behind").join(name)).unwrap();
    let conflicts = mount.stat("conflicts");
    let summary = format!("{} here, {} there, {synced:?}, {conflicts}", here.len(), there.len());
    assert!(here == whole && there == whole, "{summary}");
    assert!(synced.is_ok() && conflicts == 0, "{summary}");
}

/// Ends write-back of a file.
fn lock_once(file: &File) {
    file.lock().unwrap();
    file.unlock().unwrap();
}

#[test]
fn an_open_beside_a_write_that_finds_no_room_misses_none_of_its_bytes() {
    let options = ["--write-back", "1000s,1K", "--lazy-close"];
    let write = |_: &Mount, first: &File| first.write_all_at(&[b'a'; 3000], 0).unwrap();
    open_beside(&options, write, &[b'a'; 3000], "it");
}

#[test]
fn an_open_beside_bytes_that_are_brought_to_the_source_misses_none_of_them() {
    let bring = |_: &Mount, first: &File| {
        first.write_all_at(b"first", 0).unwrap();
        lock_once(first);
    };
    open_beside(&LAZY, bring, b"first", "it");
}

#[test]
fn an_open_beside_a_change_of_the_size_knows_the_new_one() {
    let grow = |_: &Mount, first: &File| {
        lock_once(first);
        first.set_len(3000).unwrap();
    };
    open_beside(&LAZY, grow, &[], "it");
}

/// A rename changes the file's change time.
#[test]
fn an_open_beside_a_rename_is_no_conflict() {
    let rename = |mount: &Mount, _: &File| {
        fs::rename(mount.at("it"), mount.at("other")).unwrap();
    };
    open_beside(&LAZY, rename, &[], "other");
}
