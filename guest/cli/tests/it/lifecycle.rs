//! Start and end of a mount.

use std::fs::{self, File};
use std::process::Command;

use flowstone_testkit::{HANG, wait_until};
use rustix::mount::{UnmountFlags, unmount};

use crate::fixture::{Mount, rest_of};

fn is_mounted(mount: &Mount) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.contains(mount.root().to_str().unwrap())
}

#[test]
fn a_termination_ends_with_0_and_the_mount_gone_a_busy_one_too() {
    for is_busy in [false, true] {
        let Some(mut mount) = Mount::start(&[]) else { return };
        mount.copied("it", "text");
        let mut held = is_busy.then(|| File::open(mount.at("it")).unwrap());
        let mut inside = is_busy.then(|| {
            let mut command = Command::new("sleep");
            command.arg("1000").current_dir(mount.root()).spawn().unwrap()
        });
        let status = mount.daemon().terminate(HANG).unwrap();
        assert!(status.success(), "{status}");
        assert!(!is_mounted(&mount));
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
        if let Some(file) = &mut held {
            // The kernel may go on reading a copy, or report that the daemon is gone.
            let _ = std::io::Read::read(file, &mut [0; 4]);
        }
        if let Some(process) = &mut inside {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}

#[test]
fn an_unmount_by_hand_ends_it_with_0() {
    let Some(mut mount) = Mount::start(&[]) else { return };
    unmount(mount.root(), UnmountFlags::empty()).unwrap();
    assert!(mount.daemon().wait(HANG).unwrap().success());
}

#[test]
fn after_a_kill_a_new_start_needs_no_unmount() {
    let Some(mut mount) = Mount::start(&[]) else { return };
    fs::write(mount.at("it"), "text").unwrap();
    let held = File::open(mount.at("it")).unwrap();
    mount.daemon().kill().unwrap();
    assert!(is_mounted(&mount), "the kernel keeps a dead mount");
    assert!(fs::metadata(mount.at("it")).is_err());
    mount.begin();
    assert_eq!(mount.read("it"), "text");
    drop(held);
    assert!(mount.daemon().terminate(HANG).unwrap().success());
    wait_until("no mount is left", || !is_mounted(&mount));
}

#[test]
fn a_folder_can_be_shown_at_its_own_place() {
    let Some(mount) = Mount::start(&[]) else { return };
    let at = mount.beside("both");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("it"), "text").unwrap();
    let mut daemon = flowstone_testkit::DaemonCommand::new(crate::fixture::PROGRAM)
        .args(["cache", "--source"])
        .arg(&at)
        .arg("--mount")
        .arg(&at)
        .ready(flowstone_testkit::process::Ready::Now)
        .spawn()
        .unwrap();
    daemon.wait_stdout("serving", HANG).unwrap();
    assert_eq!(rest_of(&mut File::open(at.join("it")).unwrap()), "text");
    assert!(daemon.terminate(HANG).unwrap().success());
    assert_eq!(fs::read_to_string(at.join("it")).unwrap(), "text");
}
