//! Other files beside an image: those of other owners, images with the same name, copies, the same
//! image under another name. None of them is changed or trusted.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use flowstone_block::Op;
use flowstone_sim::SimDisk;
use flowstone_testkit::skip;

use super::super::Qcow2Image;
use super::fixture::{Guest, assert_clean, contents, extent, new_disk, open};
use super::host::{Host, set_word, word};

const SECTORS: u64 = 1500;

/// A daemon has written the first cluster, and was killed.
fn killed_after_a_write(host: &Host) -> SimDisk {
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    let mut guest = Guest::new(&image);
    guest.run(Op::Write(extent(0, 8)), 7).unwrap();
    let killed = host.kill(&disk, 1);
    drop((guest, image));
    host.bring_back(killed)
}

/// The disk of another VM had the name of the image's redo file: it was truncated, overwritten and
/// removed.
#[test]
fn a_file_of_somebody_else_that_is_called_like_the_redo_file_is_left_alone() {
    let host = Host::new();
    let other = vec![0x5a; 1 << 20];
    std::fs::write(host.old_redo(), &other).unwrap();
    let is_left_alone = || std::fs::read(host.old_redo()).is_ok_and(|found| found == other);
    let disk = killed_after_a_write(&host);
    assert!(is_left_alone());
    std::fs::rename(host.redo(), host.path().with_file_name("kept")).unwrap();
    let refusal = host.refusal(&disk);
    assert!(refusal.contains(&format!("{} is not there", host.redo().display())), "{refusal}");
    host.check(&disk, true).unwrap();
    drop(host.open(&disk));
    assert!(is_left_alone());
}

/// Serves an image that is renamed, and then another one that takes its name.
fn renamed(host: &Host, first: &SimDisk, second: &SimDisk) -> [Qcow2Image; 2] {
    let one = host.open(first);
    std::fs::rename(host.path(), host.path().with_file_name("old")).unwrap();
    std::fs::write(host.path(), "").unwrap();
    [one, host.open(second)]
}

/// The redo file of an image that is being served.
fn redo_of(host: &Host, image: &Qcow2Image) -> PathBuf {
    let session = image.core.meta().redo.as_ref().unwrap().mark().session();
    host.path().with_file_name(format!("flowstone-{session:010x}.redo"))
}

/// `mv vm old` while it is served, then another image takes the name and is served, too. Both
/// mapped one redo file: after a kill one got the other's map.
#[test]
fn an_image_that_takes_the_name_of_one_in_use_does_not_get_its_changes() {
    let host = Host::new();
    let second = new_disk(SECTORS, 4096);
    let image = open(&second);
    let mut guest = Guest::new(&image);
    for cluster in 0..20 {
        guest.run(Op::Write(extent(cluster * 8, 8)), 100 + cluster as u8).unwrap();
    }
    guest.run(Op::Flush, 0).unwrap();
    drop((guest, image));
    let first = new_disk(SECTORS, 4096);
    let [one, two] = renamed(&host, &first, &second);
    let mut guests = [Guest::new(&one), Guest::new(&two)];
    for cluster in 50..60 {
        guests[0].run(Op::Write(extent(cluster * 8, 8)), 7).unwrap();
        guests[1].run(Op::Write(extent(cluster * 8 + 80, 8)), 8).unwrap();
    }
    let expected = [&one, &two].map(|image| contents(image));
    let redos = [&one, &two].map(|image| redo_of(&host, image));
    assert_ne!(redos[0], redos[1]);
    let kept = redos.each_ref().map(|redo| std::fs::read(redo).unwrap());
    let killed =
        [&first, &second].map(|disk| disk.kill_at(disk.now(), &mut flowstone_sim::Fate::seeded(1)));
    drop((guests, one, two));
    assert_eq!(host.redos().len(), 0);
    kept.iter().for_each(|redo| host.remember(redo));
    assert!(host.read(&killed[1]) == expected[1]);
    // Renamed, it finds its own.
    let renamed = host.path().with_file_name("old");
    let one = host.open_by(&renamed, &killed[0], None).unwrap();
    assert!(contents(&one) == expected[0]);
    drop((one, host.open(&killed[1])));
    assert_eq!(host.redos().len(), 0);
    killed.iter().for_each(assert_clean);
}

/// The clean close of the first one removed the redo file of the second.
#[test]
fn an_image_that_takes_the_name_of_one_in_use_keeps_its_redo_file_when_that_is_closed() {
    let host = Host::new();
    let (first, second) = (new_disk(SECTORS, 4096), new_disk(SECTORS, 4096));
    let [one, two] = renamed(&host, &first, &second);
    let mut guest = Guest::new(&two);
    guest.run(Op::Write(extent(0, 8)), 9).unwrap();
    drop(one);
    let killed = host.kill(&second, 1);
    drop((guest, two));
    let second = host.bring_back(killed);
    assert_eq!(host.read(&second)[0], 9);
}

/// Another file got the redo file's name while the image was served: it was removed at the clean
/// close.
#[test]
fn a_file_that_has_taken_the_redo_files_name_stays() {
    let host = Host::new();
    let disk = new_disk(SECTORS, 4096);
    let image = host.open(&disk);
    std::fs::remove_file(host.redo()).unwrap();
    std::fs::write(host.redo(), "theirs").unwrap();
    drop(image);
    assert_eq!(std::fs::read(host.redo()).unwrap(), b"theirs");
}

/// The daemon removed its redo file by a path that led to another folder by then.
#[test]
fn a_folder_that_is_renamed_while_its_image_is_served_keeps_no_redo_file() {
    let outer = tempfile::tempdir().unwrap();
    let folders = ["one", "two"].map(|name| outer.path().join(name));
    std::fs::create_dir(&folders[0]).unwrap();
    let path = folders[0].join("image");
    std::fs::write(&path, "").unwrap();
    let disk = new_disk(SECTORS, 4096);
    let image = Host::new().open_by(&path, &disk, None).unwrap();
    std::fs::rename(&folders[0], &folders[1]).unwrap();
    assert_eq!(std::fs::read_dir(&folders[1]).unwrap().count(), 2);
    drop(image);
    assert_eq!(std::fs::read_dir(&folders[1]).unwrap().count(), 1);
}

/// Moved to another folder after the kill, or found there by another hard link: the refusal names
/// both remedies.
#[test]
fn an_image_that_is_moved_without_its_redo_file_is_refused() {
    let host = Host::new();
    let disk = killed_after_a_write(&host);
    let other = tempfile::tempdir().unwrap();
    let moved = other.path().join("moved");
    std::fs::hard_link(host.path(), &moved).unwrap();
    let refusal = host.open_by(&moved, &disk, None).err().unwrap().to_string();
    let name = host.redo().file_name().unwrap().to_str().unwrap().to_owned();
    assert!(refusal.contains(&format!("{name} is not there; bring that file back")), "{refusal}");
    assert!(refusal.contains("go on without with `flowstone check --repair`"), "{refusal}");
    std::fs::copy(host.redo(), other.path().join(name)).unwrap();
    assert_eq!(contents(&host.open_by(&moved, &disk, None).unwrap())[0], 7);
}

/// A copy beside the original image has the same mark; the first one opened got the changes and
/// removed the redo file.
#[test]
fn a_copy_of_the_image_does_not_get_its_changes() {
    let host = Host::new();
    let disk = killed_after_a_write(&host);
    let copy = host.path().with_file_name("copy");
    std::fs::copy(host.path(), &copy).unwrap();
    let copied = SimDisk::from_bytes(&disk.to_bytes());
    let refusal = host.open_by(&copy, &copied, None).err().unwrap().to_string();
    assert!(refusal.contains("or of another copy of the image"), "{refusal}");
    assert_eq!(contents(&host.open(&disk))[0], 7);
}

/// Killed in one mount of its file system, found in another one of the same boot: the device number
/// differs (NFS, loop, device mapper, btrfs), and was compared. File systems without persistent
/// inode numbers (FUSE) give others to both files, as do copies of both.
#[test]
fn a_redo_file_is_believed_when_its_file_system_has_been_mounted_again() {
    for words in [&[3][..], &[4, 11]] {
        let host = Host::new();
        let disk = killed_after_a_write(&host);
        let mut redo = std::fs::read(host.redo()).unwrap();
        words.iter().for_each(|index| {
            let before = word(&redo, *index);
            set_word(&mut redo, *index, before ^ 1);
        });
        std::fs::write(host.redo(), &redo).unwrap();
        assert_eq!(contents(&host.open(&disk))[0], 7);
    }
}

/// The folder's owner created the redo file, the daemon mapped it, the owner truncated it, and the
/// next change ended the daemon with all its disks. A file with two names, or of another user, may
/// be reached like that.
#[test]
fn only_a_file_that_no_other_user_reaches_is_mapped() {
    let host = Host::new();
    let mode = || std::fs::metadata(host.redo()).unwrap().permissions().mode() & 0o777;
    let image = host.open(&new_disk(SECTORS, 4096));
    assert_eq!(mode(), 0o600);
    drop(image);
    let disk = killed_after_a_write(&host);
    let set_mode = |mode| {
        std::fs::set_permissions(host.redo(), Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o620, 0o602] {
        set_mode(mode);
        let refusal = host.refusal(&disk);
        assert!(refusal.contains("other users may write it"), "{refusal}");
    }
    set_mode(0o600);
    let link = host.path().with_file_name("link");
    std::fs::hard_link(host.redo(), &link).unwrap();
    let refusal = host.refusal(&disk);
    assert!(refusal.contains("it has other names, by which others may reach it"), "{refusal}");
    assert_eq!(host.check(&disk, true).unwrap_err().to_string(), refusal);
    std::fs::remove_file(&link).unwrap();
    let owner = std::fs::metadata(host.redo()).unwrap().uid();
    if std::os::unix::fs::chown(host.redo(), Some(owner + 1), None).is_err() {
        skip("this user cannot give files away");
    } else {
        let refusal = host.refusal(&disk);
        assert!(refusal.contains("it belongs to another user"), "{refusal}");
        std::os::unix::fs::chown(host.path(), Some(owner + 1), None).unwrap();
        assert_eq!(host.read(&disk)[0], 7, "the owner of the image may say what it holds");
        let refusal = host.open_by(host.path(), &disk, None).err().unwrap().to_string();
        assert!(refusal.contains("give it back to the user that serves the image"), "{refusal}");
        std::os::unix::fs::chown(host.redo(), Some(owner), None).unwrap();
    }
    assert_eq!(contents(&host.open(&disk))[0], 7);
}
