//! The table of modes against the real kernel: allowed modes work, and no open fails with EIO.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Command;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::fixture::{Mount, append, rest_of};

/// A mapped page of a file.
struct Page(*mut u8);

impl Page {
    fn of(file: &File, writable: bool) -> Self {
        let rights = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping takes no memory that is in use.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, rights, MapFlags::SHARED, file, 0) };
        Self(at.unwrap().cast())
    }

    fn byte(&self, at: usize) -> u8 {
        assert!(at < 4096);
        // SAFETY: it lies in the page, which is mapped until this is dropped.
        unsafe { self.0.add(at).read_volatile() }
    }

    fn store(&self, at: usize, byte: u8) {
        assert!(at < 4096);
        // SAFETY: it lies in the page, which is mapped until this is dropped.
        unsafe { self.0.add(at).write_volatile(byte) };
    }

    fn sync(&self) {
        // SAFETY: the page is mapped.
        unsafe { msync(self.0.cast(), 4096, MsyncFlags::SYNC).unwrap() };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the page any more.
        unsafe { munmap(self.0.cast(), 4096).unwrap() };
    }
}

#[test]
fn a_file_is_read_from_the_source_first_and_then_from_its_copy() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    let before = mount.stat("opens/copy");
    mount.copied("it", "text");
    assert!(mount.stat("opens/copy") > before);
    assert_eq!(mount.read("it"), "text");
    assert_eq!(mount.stat("read_bytes"), 0, "the kernel reads copies itself");
    assert!(mount.stat("cached_bytes") > 0);
}

#[test]
fn what_is_written_is_at_the_source_when_the_write_returns() {
    for options in [&[][..], &["--modes", "plain"]] {
        let Some(mount) = Mount::start(options) else { return };
        let mut file = File::create(mount.at("new")).unwrap();
        file.write_all(b"one").unwrap();
        assert_eq!(fs::read_to_string(mount.source("new")).unwrap(), "one");
        file.set_len(1).unwrap();
        assert_eq!(fs::read_to_string(mount.source("new")).unwrap(), "o");
        drop(file);
        append(&mount.at("new"), "ther");
        assert_eq!(mount.read("new"), "other");
    }
}

#[test]
fn a_writer_beside_readers_of_a_copy_writes_to_the_source_and_they_see_it() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    mount.copied("it", "old text");
    let mut reader = File::open(mount.at("it")).unwrap();
    assert!(mount.stat("pinned_bytes") > 0, "it is open in mode Copy");
    let mut writer = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    writer.write_all(b"new").unwrap();
    assert_eq!(fs::read_to_string(mount.source("it")).unwrap(), "new text");
    assert_eq!(rest_of(&mut reader), "new text", "after the write has returned");
    writer.seek(SeekFrom::End(0)).unwrap();
    writer.write_all(b", longer").unwrap();
    assert_eq!(rest_of(&mut reader), ", longer");
    writer.set_len(3).unwrap();
    reader.rewind().unwrap();
    assert_eq!(rest_of(&mut reader), "new");
    assert_eq!(mount.read("it"), "new", "who opens it now sees it, too");
    drop(writer);
    assert_eq!(mount.read("it"), "new");
    drop(reader);
    mount.wait_for_copy("it");
    assert_eq!(mount.read("it"), "new");
}

#[test]
fn readers_of_a_copy_see_a_write_through_a_mapping_of_theirs() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    mount.copied("it", vec![b'o'; 8192]);
    let reader = File::open(mount.at("it")).unwrap();
    let page = Page::of(&reader, false);
    assert_eq!(page.byte(7), b'o');
    let writer = File::options().write(true).open(mount.at("it")).unwrap();
    writer.write_all_at(b"n", 7).unwrap();
    assert_eq!(page.byte(7), b'n');
}

#[test]
fn a_store_through_a_mapping_reaches_the_source() {
    for options in [&[][..], &["--modes", "copy,plain"], &["--modes", "plain"]] {
        let Some(mount) = Mount::start(options) else { return };
        mount.copied("it", vec![b'o'; 4096]);
        let file = File::options().read(true).write(true).open(mount.at("it")).unwrap();
        let page = Page::of(&file, true);
        page.store(9, b'n');
        page.sync();
        assert_eq!(fs::read(mount.source("it")).unwrap()[9], b'n', "{options:?}");
        drop(page);
        drop(file);
        assert_eq!(fs::read(mount.at("it")).unwrap()[9], b'n', "{options:?}");
    }
}

#[test]
fn a_store_beside_readers_of_a_copy_reaches_them_with_its_sync() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    mount.copied("it", vec![b'o'; 4096]);
    let reader = File::open(mount.at("it")).unwrap();
    let file = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    let page = Page::of(&file, true);
    page.store(9, b'n');
    page.sync();
    assert_eq!(fs::read(mount.source("it")).unwrap()[9], b'n');
    let mut byte = [0];
    reader.read_exact_at(&mut byte, 9).unwrap();
    assert_eq!(byte, [b'n']);
}

#[test]
fn without_passthrough_a_copy_answers_through_the_daemon() {
    let Some(mount) = Mount::start(&["--modes", "plain"]) else { return };
    mount.copied("it", "text");
    assert_eq!(mount.read("it"), "text");
    assert_eq!(mount.stat("opens/copy") + mount.stat("opens/source"), 0);
    assert!(mount.stat("read_bytes") > 0);
    append(&mount.at("it"), " and more");
    assert_eq!(mount.read("it"), "text and more");
}

#[test]
fn a_program_runs_from_its_copy() {
    let Some(mount) = Mount::start(&[]) else { return };
    fs::copy("/bin/true", mount.source("true")).unwrap();
    fs::set_permissions(mount.source("true"), PermissionsExt::from_mode(0o755)).unwrap();
    for _ in 0..2 {
        assert!(Command::new(mount.at("true")).status().unwrap().success());
        mount.wait_for_copy("true");
    }
}

#[test]
fn all_that_is_done_to_names_is_done_at_the_source() {
    let Some(mount) = Mount::start(&[]) else { return };
    fs::create_dir(mount.at("folder")).unwrap();
    fs::write(mount.at("folder/a"), "a").unwrap();
    fs::rename(mount.at("folder/a"), mount.at("folder/b")).unwrap();
    fs::hard_link(mount.at("folder/b"), mount.at("c")).unwrap();
    std::os::unix::fs::symlink("folder/b", mount.at("link")).unwrap();
    assert_eq!(mount.read("link"), "a");
    assert_eq!(fs::read_to_string(mount.source("c")).unwrap(), "a");
    fs::remove_file(mount.at("folder/b")).unwrap();
    assert_eq!(mount.read("c"), "a", "it has another name");
    fs::remove_dir(mount.at("folder")).unwrap();
    let names = |at| {
        let entries = fs::read_dir(at).unwrap().map(|it| it.unwrap().file_name());
        let mut names: Vec<_> = entries.collect();
        names.sort();
        names
    };
    assert_eq!(names(mount.root()), ["c", "link"]);
    assert_eq!(names(mount.source("")), ["c", "link"]);
}

#[test]
fn a_file_without_a_name_lives_until_it_is_closed() {
    let Some(mount) = Mount::start(&[]) else { return };
    for is_copied in [false, true] {
        if is_copied {
            mount.copied("it", "text");
        } else {
            mount.write_source("it", "text");
        }
        let mut file = File::open(mount.at("it")).unwrap();
        fs::remove_file(mount.at("it")).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 4);
        assert_eq!(rest_of(&mut file), "text");
    }
}
