//! A daemon was killed, and the next user of the image may be on another boot or another host.

use flowstone_sim::SimDisk;

use super::fixture::{assert_clean, contents, new_disk};
use super::host::{Host, SECTORS, before_a_restart, killed, set_word, word};

const NUMBER: usize = 1;
const STARTED: usize = 8;
const ALIVE: usize = 9;
const HOST: usize = 10;

fn flip(redo: &mut [u8], index: usize) {
    let before = word(redo, index);
    set_word(redo, index, before ^ 1);
}

/// A container has another boot number at each start (systemd-nspawn, LXC), or a host's clock is
/// set: completed writes read as zeroes, and nothing was logged.
#[test]
fn changes_survive_another_boot_number_and_another_time() {
    const HOUR_MS: u64 = 3_600_000;
    for (index, difference) in [(NUMBER, 1), (STARTED, HOUR_MS)] {
        let host = Host::new();
        let before = word(&begun(&host), index);
        let disk = killed(&host, |redo| set_word(redo, index, before - difference));
        assert_eq!(host.read(&disk)[0], 7);
        let report = host.check(&disk, true).unwrap();
        assert!(report.notes[0].contains("1 changes of a killed daemon wait"), "{report:?}");
        let image = host.open(&disk);
        let after = word(&std::fs::read(host.redo()).unwrap(), index);
        assert!(after.abs_diff(before) < 1000, "it is of this boot from now on");
        drop(image);
        assert_clean(&disk);
    }
}

/// Two hosts share the storage, and the other one is up, or was up when the file was written.
#[test]
fn what_may_be_of_a_host_that_is_up_is_refused_with_both_choices_named() {
    let elsewhere: [fn(&mut [u8]); 2] = [
        |redo| {
            // Another host, which was killed before this one was started.
            before_a_restart(redo);
            let started = word(redo, STARTED);
            set_word(redo, ALIVE, started + 1);
            flip(redo, HOST);
        },
        |redo| {
            // The file is newer than the start of this host.
            let alive = word(redo, ALIVE);
            before_a_restart(redo);
            set_word(redo, ALIVE, alive);
        },
    ];
    for change in elsewhere {
        let host = Host::new();
        let disk = killed(&host, change);
        let bytes = disk.to_bytes();
        let refusal = host.refusal(&disk);
        assert!(refusal.contains("has them, and is of another host, or of another"), "{refusal}");
        assert!(refusal.contains("serve the image where it was served, or, if"), "{refusal}");
        for repair in [false, true] {
            assert_eq!(host.check(&disk, repair).unwrap_err().to_string(), refusal);
        }
        assert!(disk.to_bytes() == bytes, "who refuses writes nothing");
        // Follows the advice of the refusal.
        let redo = std::fs::read(host.redo()).unwrap();
        std::fs::remove_file(host.redo()).unwrap();
        let given_up = SimDisk::from_bytes(&bytes);
        host.check(&given_up, true).unwrap();
        assert_eq!(contents(&host.open(&given_up))[0], 0);
        let mut there = redo;
        let boot = word(&begun(&host), NUMBER);
        set_word(&mut there, NUMBER, boot);
        host.remember(&there);
        assert_eq!(contents(&host.open(&disk))[0], 7, "where it was served");
    }
}

/// Returns the redo file of another session of this boot.
fn begun(host: &Host) -> Vec<u8> {
    let image = host.open(&new_disk(SECTORS, 4096));
    let found = std::fs::read(host.redo()).unwrap();
    drop(image);
    found
}

/// The host was restarted: data that was not durable may be lost, and the redo file is void.
#[test]
fn after_a_restart_of_the_host_the_redo_file_is_void() {
    let host = Host::new();
    let disk = killed(&host, before_a_restart);
    assert_eq!(host.read(&disk)[0], 0);
    assert_eq!(contents(&host.open(&disk))[0], 0);
    assert_eq!(host.redos().len(), 0);
}
