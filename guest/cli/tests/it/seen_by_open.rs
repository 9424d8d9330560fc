//! What an open asks the source, and attributes that it has seen.

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use flowstone_testkit::fuse::Call;
use flowstone_testkit::skip;

use crate::fixture::Mount;

/// Names and attributes last.
const LASTING: [&str; 2] = ["--window", "1000s"];

/// Opens the file, and reads it, which leaves its time of access unknown.
fn opened(mount: &Mount) -> File {
    let mut file = File::open(mount.at("it")).unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
    file
}

/// The same question was asked up to four times.
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
    // Those of the folder and of the file say who may look a name up and open it. Then they are
    // compared with the copy's.
    assert!(asked[2] <= 3 * OPENS, "{asked:?}");
}

#[test]
fn attributes_after_a_change_are_those_of_the_change() {
    let Some(mount) = Mount::with_passthrough(&LASTING) else { return };
    mount.copied("it", "text");
    let (mut file, it) = (opened(&mount), mount.at("it"));
    let mut look = || {
        file.read_to_end(&mut Vec::new()).unwrap();
        file.metadata().unwrap()
    };
    for mode in [0o600, 0o640] {
        fs::set_permissions(&it, Permissions::from_mode(mode)).unwrap();
        assert_eq!(look().mode() & 0o777, mode);
    }
    fs::hard_link(&it, mount.at("link")).unwrap();
    assert_eq!(look().nlink(), 2);
    fs::rename(mount.at("link"), mount.at("other")).unwrap();
    fs::remove_file(mount.at("other")).unwrap();
    assert_eq!(look().nlink(), 1);
}

/// Who opens it after a change at the source sees that, and so does who has it open.
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
