//! Lists of folders while names come and go.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::RawDir;

use crate::fixture::Mount;

const FILES: usize = 600;

/// The files in an open folder from its place on: what one call gives, or all of them.
fn files(folder: &File, all: bool) -> Vec<String> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut list = RawDir::new(folder, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = list.next() {
        names.push(entry.unwrap().file_name().to_str().unwrap().to_owned());
        if !all && list.is_buffer_empty() {
            break;
        }
    }
    names.retain(|name| name.starts_with("file"));
    names
}

/// The kernel asks for the rest of a list of which it had the beginning from another reader. All
/// that was left was missing.
#[test]
fn a_list_that_the_kernel_has_lost_in_the_middle_goes_on() {
    let Some(mount) = Mount::start(&[]) else { return };
    let all: Vec<_> = (0..FILES).map(|file| format!("file{file:04}")).collect();
    all.iter().for_each(|name| mount.write_source(name, ""));
    fs::read_dir(mount.root()).unwrap().count();
    // Only the list of a folder that has not changed for two seconds is kept.
    sleep(Duration::from_millis(2100));
    fs::read_dir(mount.root()).unwrap().count();
    let first = File::open(mount.root()).unwrap();
    let mut seen = files(&first, false);
    assert!(seen.len() < FILES);
    // One name comes, one that was listed goes, and another reader begins.
    fs::write(mount.at("new"), "").unwrap();
    fs::remove_file(mount.at(&seen[0])).unwrap();
    files(&File::open(mount.root()).unwrap(), false);
    seen.extend(files(&first, true));
    seen.sort();
    assert_eq!(seen, all);
}
