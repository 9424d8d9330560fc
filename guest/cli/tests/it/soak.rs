//! Third-party file system tests, on a mount. `scripts/setup --soak` installs them.

use std::fs;
use std::process::{Command, Stdio};

use flowstone_testkit::skip;

use crate::fixture::Mount;

/// Users that pjdfstest uses; Debian has them.
const USERS: &str = r#"
[features]
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"#;

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        skip(format_args!("there is no {tool}; run scripts/setup --soak"));
    }
    found
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

/// Tests that pass on ext4 pass on the mount: 350 tests, most of which sleep.
fn posix(modes: &str) {
    if !has("pjdfstest") {
        return;
    }
    let Some(mount) = Mount::start(&["--modes", modes]) else { return };
    let users = mount.beside("users.toml");
    fs::write(&users, USERS).unwrap();
    run(Command::new("pjdfstest").arg("-c").arg(users).arg("-p").arg(mount.root()));
}

#[test]
#[ignore = "a soak"]
fn soak_posix_in_all_modes() {
    posix("copy,source,plain");
}

#[test]
#[ignore = "a soak"]
fn soak_posix_through_the_daemon() {
    posix("plain");
}

#[test]
#[ignore = "a soak"]
fn soak_fsx_in_each_set_of_modes() {
    if !has("fsx") {
        return;
    }
    for modes in ["copy,source,plain", "copy,plain", "plain"] {
        let Some(mount) = Mount::start(&["--modes", modes]) else { return };
        run(Command::new("fsx").args(["-N", "20000", "-P", "/tmp"]).arg(mount.at("it")));
    }
}
