//! An image whose daemon was killed before an upgrade: earlier versions named the redo file after
//! the image, and told boots apart by their number alone.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use flowstone_block::Op;
use flowstone_sim::SimDisk;

use super::fixture::{Guest, assert_clean, contents, extent, new_disk, number};
use super::host::{Host, set_word, word};

const SECTORS: u64 = 1500;

/// An image killed by a version whose redo files begin with this magic.
fn killed(host: &Host, magic: &[u8; 8]) -> SimDisk {
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 7).unwrap();
    let killed = host.kill(&disk, 1);
    drop((guest, image));
    let mut redo = killed.redo;
    redo[8 * 8..4096].fill(0);
    redo[..8].copy_from_slice(magic);
    std::fs::write(host.old_redo(), redo).unwrap();
    std::fs::set_permissions(host.old_redo(), Permissions::from_mode(0o600)).unwrap();
    killed.disk
}

/// Changes the redo file as if the host had been restarted since, or as if it were another one.
fn in_another_boot(host: &Host, restarted: bool) {
    let mut redo = std::fs::read(host.old_redo()).unwrap();
    let number = word(&redo, 1);
    set_word(&mut redo, 1, number ^ 1);
    std::fs::write(host.old_redo(), redo).unwrap();
    if restarted {
        let file = File::options().write(true).open(host.old_redo()).unwrap();
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        file.set_modified(long_ago).unwrap();
    }
}

#[test]
fn changes_of_a_daemon_that_was_killed_before_an_upgrade_are_taken_over() {
    let host = Host::new();
    let disk = killed(&host, b"fsredo02");
    assert_eq!(host.read(&disk)[0], 7);
    let report = host.check(&disk, true).unwrap();
    assert!(report.notes[0].contains("1 changes of a killed daemon wait"), "{report:?}");
    let image = host.open(&disk);
    assert!(!host.old_redo().exists(), "it has the name of its session");
    assert_eq!(contents(&image)[0], 7);
    // Killed again.
    let again = host.kill(&disk, 1);
    drop(image);
    let disk = host.bring_back(again);
    assert_eq!(contents(&host.open(&disk))[0], 7);
    assert_eq!(host.redos().len(), 0);
    assert_clean(&disk);
}

/// Closed cleanly, or before a restart of the host: they open as usual.
#[test]
fn images_of_earlier_versions_open() {
    for magic in [b"fsredo01", b"fsredo02"] {
        let host = Host::new();
        let disk = killed(&host, magic);
        if magic == b"fsredo01" {
            disk.write_at(88, &(1u64 << 63).to_be_bytes());
        }
        in_another_boot(&host, true);
        assert_eq!(host.read(&disk)[0], 0);
        assert_eq!(host.check(&disk, false).unwrap().errors, Vec::<String>::new());
        drop(host.open(&disk));
        assert_eq!(number(&disk, 88), 0);
        assert_eq!(host.old_redo().exists(), magic == b"fsredo01", "it says of no image");
        assert_eq!(contents(&host.open(&disk))[0], 0);
    }
}

/// The boot number alone was taken as proof of a restart.
#[test]
fn what_an_earlier_version_has_left_in_another_boot_is_refused_if_that_may_not_have_ended() {
    for (magic, mark) in [(b"fsredo01", Some(1u64 << 63)), (b"fsredo02", None)] {
        let host = Host::new();
        let disk = killed(&host, magic);
        if let Some(mark) = mark {
            disk.write_at(88, &mark.to_be_bytes());
            let refusal = host.refusal(&disk);
            assert!(refusal.contains("an earlier version has written"), "{refusal}");
            assert_eq!(host.check(&disk, true).unwrap_err().to_string(), refusal);
        }
        in_another_boot(&host, false);
        let refusal = host.refusal(&disk);
        assert!(refusal.contains("image.redo has them, and is of another host"), "{refusal}");
        assert_eq!(host.check(&disk, true).unwrap_err().to_string(), refusal);
    }
}
