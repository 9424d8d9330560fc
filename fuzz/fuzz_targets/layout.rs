//! Disks that a guest has forged: whatever they hold, reading their layout ends, and takes what it
//! may.

#![no_main]

use flowstone_classify::{ReadBytes, recognise};
use libfuzzer_sys::fuzz_target;

/// Where structures lie that are read from fixed places, and some room behind each.
const PLACES: [u64; 6] = [0, 512, 1024, 4096, 1 << 20, 1 << 30];
const DISK_BYTES: u64 = 1 << 50;

/// The fuzzer's bytes, repeated from every place where a structure may begin.
struct Disk<'a> {
    bytes: &'a [u8],
    read: u64,
}

impl ReadBytes for Disk<'_> {
    fn read(&mut self, at: u64, target: &mut [u8]) -> Option<()> {
        self.read += target.len() as u64;
        let place = PLACES.iter().rev().find(|place| **place <= at).expect("0 is one");
        let from = usize::try_from(at - place).ok()?;
        target.fill(0);
        let part = self.bytes.get(from..).unwrap_or_default();
        let count = part.len().min(target.len());
        target[..count].copy_from_slice(&part[..count]);
        Some(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut disk = Disk { bytes, read: 0 };
    let layout = recognise(&mut disk, DISK_BYTES);
    assert!(disk.read <= 64 << 20, "{} bytes read", disk.read);
    assert!(layout.regions() <= 64 << 10);
    assert!(layout.found().len() <= 256);
});
