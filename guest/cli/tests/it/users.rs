//! Several users: the source checks the permissions of each as if there were no cache.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output};

use crate::fixture::Mount;

const ONE: u32 = 54_321;
const GROUP: u32 = 54_400;

/// Runs a shell command as a user, with a supplementary group.
fn as_user(uid: u32, groups: &str, script: &str, file: &Path) -> Output {
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={uid}"), &format!("--regid={uid}")]);
    command.arg(if groups.is_empty() {
        "--clear-groups".into()
    } else {
        format!("--groups={groups}")
    });
    command.args(["sh", "-c", script, "sh"]).arg(file).output().unwrap()
}

fn can_read(uid: u32, groups: &str, file: &Path) -> bool {
    as_user(uid, groups, "cat \"$1\" >/dev/null", file).status.success()
}

fn allow(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_copy_is_read_only_by_those_who_may_read_the_file() {
    for options in [&["--window", "1000s"][..], &["--window", "1000s", "--modes", "plain"]] {
        let Some(mount) = Mount::start(options) else { return };
        mount.copied("it", "text");
        assert!(can_read(ONE, "", &mount.at("it")));
        // The kernel caches the old permissions for a long time.
        allow(&mount.source("it"), 0o600);
        assert!(!can_read(ONE, "", &mount.at("it")));
        assert_eq!(mount.read("it"), "text");
    }
}

#[test]
fn a_file_that_is_not_copied_is_read_only_by_those_who_may() {
    let Some(mount) = Mount::start(&["--window", "1000s"]) else { return };
    mount.write_source("it", "text");
    assert!(can_read(ONE, "", &mount.at("it")));
    allow(&mount.source("it"), 0o600);
    assert!(!can_read(ONE, "", &mount.at("it")));
}

#[test]
fn supplementary_groups_count() {
    let Some(mount) = Mount::start(&[]) else { return };
    mount.write_source("it", "text");
    chown(mount.source("it"), None, Some(GROUP)).unwrap();
    allow(&mount.source("it"), 0o640);
    assert!(can_read(ONE, &GROUP.to_string(), &mount.at("it")));
    assert!(!can_read(ONE, "", &mount.at("it")));
    mount.wait_for_copy("it");
    assert!(can_read(ONE, &GROUP.to_string(), &mount.at("it")));
    assert!(!can_read(ONE, "", &mount.at("it")));
}

#[test]
fn what_a_user_makes_is_the_users() {
    let Some(mount) = Mount::start(&[]) else { return };
    allow(&mount.source(""), 0o777);
    let script = "umask 027; echo text >\"$1\"; mkdir \"$1.d\"; ln -s x \"$1.l\"";
    let output = as_user(ONE, "", script, &mount.at("it"));
    assert!(output.status.success(), "{output:?}");
    for (name, mode) in [("it", 0o640), ("it.d", 0o750), ("it.l", 0o777)] {
        let seen = fs::symlink_metadata(mount.source(name)).unwrap();
        assert_eq!((seen.uid(), seen.gid(), seen.mode() & 0o777), (ONE, ONE, mode), "{name}");
    }
}

#[test]
fn a_user_beside_another_ones_open_file_goes_through_the_daemon() {
    let Some(mount) = Mount::with_passthrough(&[]) else { return };
    mount.write_source("it", "old text");
    allow(&mount.source("it"), 0o666);
    let held = File::options().read(true).write(true).open(mount.at("it")).unwrap();
    let before = mount.stat("opens/plain");
    let output = as_user(ONE, "", "printf new 1<>\"$1\"; cat \"$1\"", &mount.at("it"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new text", "{output:?}");
    assert!(mount.stat("opens/plain") > before);
    let mut bytes = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&held, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"new text");
    std::os::unix::fs::FileExt::write_all_at(&held, b"NEW", 0).unwrap();
    let output = as_user(ONE, "", "cat \"$1\"", &mount.at("it"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "NEW text", "{output:?}");
}

#[test]
fn a_write_takes_the_set_user_id_bit_away() {
    for options in [&[][..], &["--modes", "plain"]] {
        let Some(mount) = Mount::start(options) else { return };
        mount.write_source("it", "text");
        allow(&mount.source("it"), 0o4777);
        let output = as_user(ONE, "", "printf x >>\"$1\"; stat -c %a \"$1\"", &mount.at("it"));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "777\n", "{output:?}");
        assert_eq!(fs::metadata(mount.source("it")).unwrap().mode() & 0o7777, 0o777);
    }
}

/// A server that squashes root, as most do: the daemon has no more rights than the user that it
/// acts for. A folder of the user's own could not be listed, nor could anything below one in it be
/// used.
#[test]
fn a_user_has_folders_that_the_daemon_may_not_enter() {
    let starter = &["setpriv", "--bounding-set=-dac_override,-dac_read_search"];
    for options in [&["--window", "0s"][..], &["--modes", "plain"], &["--write-back", "1000s,1M"]] {
        let Some(mount) = Mount::start_by(starter, options) else { return };
        for folder in ["home", "home/inner"] {
            fs::create_dir(mount.source(folder)).unwrap();
        }
        mount.write_source("home/inner/it", "text");
        for place in ["home/inner/it", "home/inner", "home"] {
            chown(mount.source(place), Some(ONE), Some(ONE)).unwrap();
            allow(&mount.source(place), 0o700);
        }
        let works = r#"set -e; cd "$1"
            test "$(ls)" = inner; test "$(ls inner)" = it; test "$(cat inner/it)" = text
            echo more >>inner/it; chmod 600 inner/it; touch inner/it; : >inner/it; test ! -s inner/it
            echo new >inner/new; mv inner/new inner/newer; ln inner/newer inner/second
            mkdir inner/folder; ln -s ../it inner/folder/link; readlink inner/folder/link
            sync inner/newer inner; stat inner inner/it; rm -r inner/folder
            echo other >other; mv other inner/newer; test "$(cat inner/newer)" = other
            rm inner/it; test "$(ls inner)" = "$(printf 'newer\nsecond')""#;
        let output = as_user(ONE, "", works, &mount.at("home"));
        assert!(output.status.success(), "{options:?}: {output:?}");
        assert!(!can_read(ONE + 1, "", &mount.at("home/inner/newer")));
        assert!(fs::read_dir(mount.at("home")).is_err(), "root is nobody there");
        assert_eq!(mount.stat("conflicts"), 0);
    }
}
