//! Folder lists while names are added and removed.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::RawDir;

use crate::fixture::Mount;

const FILES: usize = 600;

/// Returns the files in an open folder from its position on: those of one call, or all.
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

/// The kernel asks for the rest of a list whose beginning it had from another reader. All the rest
/// was missing.
#[test]
fn a_list_that_the_kernel_has_lost_in_the_middle_goes_on() {
    let Some(mount) = Mount::start(&[]) else { return };
    let all: Vec<_> = (0..FILES).map(|file| format!("file{file:04}")).collect();
    all.iter().for_each(|name| mount.write_source(name, ""));
    fs::read_dir(mount.root()).unwrap().count();
    // Only the list of a folder that has not changed for two seconds is cached.
    sleep(Duration::from_millis(2100));
    fs::read_dir(mount.root()).unwrap().count();
    let first = File::open(mount.root()).unwrap();
    let mut seen = files(&first, false);
    assert!(seen.len() < FILES);
    // A name is added, one that was listed is removed, and another reader begins.
    fs::write(mount.at("new"), "").unwrap();
    fs::remove_file(mount.at(&seen[0])).unwrap();
    files(&File::open(mount.root()).unwrap(), false);
    seen.extend(files(&first, true));
    seen.sort();
    assert_eq!(seen, all);
}
