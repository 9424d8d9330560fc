//! Metadata listed by a journal: debugfs writes journals in all tag formats, and a guest's queue
//! repeats these writes.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use flowstone_block::{BlockingDisk, Sector};
use flowstone_classify::{Classify, DiskClasses, Place, Rule};
use flowstone_testkit::truth::run;
use flowstone_testkit::wait_until;

use crate::disk::{Disk, MIB, extent};
use crate::slow::{OfGuest, ext4_of_32_mib, slow};

/// A disk with a new file system, and the journal that debugfs writes to it.
struct Journaled {
    guest: BlockingDisk,
    classes: Arc<DiskClasses>,
    _classify: Classify,
    block_bytes: u64,
    /// Start of the journal in bytes.
    start: u64,
    /// Its first 64 blocks, after debugfs.
    journal: Vec<u8>,
}

impl Journaled {
    fn new(mkfs: &str, script: &str) -> Self {
        let image = ext4_of_32_mib(mkfs);
        let block_bytes = if mkfs.contains("-b 4096") { 4096 } else { 1024 };
        let (disk, _) = slow(&image);
        let classify = Classify::new(disk, 3);
        let classes = classify.classes();
        wait_until("the layout, twice", || classes.readings() >= 2);
        let layout = classes.layout();
        let is_journal = |at: &u64| layout.place(extent(*at, block_bytes)) == Place::Journal;
        let blocks = (0..32 * MIB).step_by(usize::try_from(block_bytes).unwrap());
        let start = blocks.into_iter().find(is_journal).unwrap();
        let journal = written(&image, script, (start, 64 * block_bytes));
        let guest = BlockingDisk::new(&OfGuest(&classify, 0)).unwrap();
        Self { guest, classes, _classify: classify, block_bytes, start, journal }
    }

    /// Writes these blocks of the journal as the guest.
    fn write_journal(&mut self, first: u64, count: u64) {
        let (from, bytes) = (first * self.block_bytes, count * self.block_bytes);
        let mut piece = self.journal[from as usize..(from + bytes) as usize].to_vec();
        self.guest.write(Sector::new((self.start + from) / 512), &mut piece).unwrap();
    }

    /// Returns whether a write to these blocks is classed as metadata listed by the journal.
    fn is_listed(&mut self, first: u64, count: u64) -> bool {
        let listed = || self.classes.of_rule(Rule::Journal);
        let before = listed();
        let mut data = vec![7; (count * self.block_bytes) as usize];
        self.guest.write(Sector::new(first * self.block_bytes / 512), &mut data).unwrap();
        listed() > before
    }
}

/// Returns a range of the disk after a debugfs script.
fn written(image: &Disk, script: &str, (start, bytes): (u64, u64)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    // Also a block that looks like one of the journal's own.
    let mut blocks = vec![0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 5];
    blocks.resize(64 << 10, 9);
    std::fs::write(&data, &blocks).unwrap();
    let commands = folder.path().join("commands");
    std::fs::write(&commands, script.replace("DATA", data.to_str().unwrap())).unwrap();
    run("debugfs", &["-w", "-f", commands.to_str().unwrap(), image.path()], "");
    let mut journal = vec![0; bytes as usize];
    image.file.as_file().read_exact_at(&mut journal, start).unwrap();
    journal
}

/// Two transactions: the second one revokes blocks.
const SCRIPT: &str = "jw -b 4000,4001,4002,4007 DATA\njw -r 4001,4007\njc\n";

#[test]
fn blocks_are_listed_and_taken_back_in_all_formats() {
    for mkfs in ["-b 1024 -O ^64bit", "-b 1024 -O 64bit", "-b 4096 -O ^64bit", "-b 4096 -O 64bit"] {
        for open in ["jo", "jo -c -v 2", "jo -c -v 3"] {
            let told = format!("{mkfs}, {open}");
            let mut disk = Journaled::new(mkfs, &format!("{open}\n{SCRIPT}"));
            assert!(!disk.is_listed(4000, 1), "{told}");
            // With its superblock, in which debugfs has chosen the format; the commit of the first
            // transaction is the last block.
            disk.write_journal(0, 7);
            assert!(disk.is_listed(4000, 1) && disk.is_listed(4001, 2), "{told}");
            assert!(disk.is_listed(4000, 3) && disk.is_listed(4007, 1), "{told}");
            assert!(!disk.is_listed(4002, 2) && !disk.is_listed(4003, 1), "{told}");
            disk.write_journal(7, 2);
            assert!(disk.is_listed(4000, 1) && disk.is_listed(4002, 1), "{told}");
            assert!(!disk.is_listed(4001, 1) && !disk.is_listed(4007, 1), "{told}");
            assert!(!disk.is_listed(4000, 3), "{told}");
        }
    }
}

/// The file system is unmounted: other programs may change it without its journal.
#[test]
fn a_journal_that_is_empty_lists_nothing() {
    let mut disk = Journaled::new("-b 4096", &format!("jo\n{SCRIPT}"));
    disk.write_journal(0, 7);
    assert!(disk.is_listed(4000, 1));
    disk.journal[28..32].fill(0);
    disk.write_journal(0, 1);
    assert!(!disk.is_listed(4000, 1));
    disk.write_journal(1, 1);
    assert!(disk.is_listed(4000, 1));
}

/// A new file system, or a moved journal, shares nothing with the old one.
#[test]
fn another_journal_lists_nothing() {
    let mut disk = Journaled::new("-b 4096", &format!("jo\n{SCRIPT}"));
    disk.write_journal(0, 7);
    assert!(disk.is_listed(4000, 1));
    let mut superblock = [0; 1024];
    disk.guest.read(Sector::new(2), &mut superblock).unwrap();
    // A field without effect, and then its UUID.
    for (changed, is_listed) in [(0x30, true), (0x68, false)] {
        superblock[changed] ^= 1;
        let before = disk.classes.readings();
        disk.guest.write(Sector::new(2), &mut superblock).unwrap();
        wait_until("another reading", || disk.classes.readings() > before);
        wait_until("its layout", || disk.is_listed(4000, 1) == is_listed);
    }
}

/// Unreadable content may have revoked blocks.
#[test]
fn a_journal_that_cannot_be_read_lists_nothing() {
    let block = 4096_usize;
    for what in 0..5 {
        let mut disk = Journaled::new("-b 4096", &format!("jo\n{SCRIPT}"));
        disk.write_journal(0, 7);
        assert!(disk.is_listed(4000, 1));
        match what {
            // Unknown flags; a block behind the end of the disk; more than fits.
            0 => disk.journal[block + 18..block + 20].fill(0x80),
            1 => disk.journal[block + 12..block + 16].fill(0xFF),
            2 => disk.journal[7 * block + 12..7 * block + 16].fill(0xFF),
            // A write that splits blocks, or includes the space behind the journal.
            3 => disk.guest.write(Sector::new(disk.start / 512 + 1), &mut [0; 4096]).unwrap(),
            _ => disk.guest.write(Sector::new(disk.start / 512 - 8), &mut [0; 8192]).unwrap(),
        }
        disk.write_journal(if what < 2 { 1 } else { 7 }, 1);
        assert!(!disk.is_listed(4000, 1), "{what}");
    }
}

/// Random errors in a journal: only the class of requests depends on it.
#[test]
fn random_mistakes_are_survived() {
    let mut disk = Journaled::new("-b 1024", &format!("jo -c -v 3\n{SCRIPT}"));
    let (sound, mut random) = (disk.journal.clone(), fastrand::Rng::with_seed(34));
    for _ in 0..3000 {
        disk.journal.clone_from(&sound);
        for _ in 0..random.usize(1..20) {
            let at = random.usize(0..9 * 1024);
            disk.journal[at] = random.u8(..);
        }
        let first = random.u64(0..8);
        disk.write_journal(first, random.u64(1..10 - first));
    }
    disk.journal.clone_from(&sound);
    disk.write_journal(0, 7);
    assert!(disk.is_listed(4000, 3));
}
