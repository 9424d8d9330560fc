//! Loom models of the map of a log image, read without a lock beside its one writer.

use std::sync::Arc;

use flowstone_block::model::{UnsafeCell, check, spawn};
use flowstone_log_format::Address;

use super::*;

fn entry(address: u32) -> MapEntry {
    MapEntry::new(Address::new(address), !address)
}

/// Blocks of the host file.
struct Blocks([UnsafeCell<u64>; 2]);

// SAFETY: loom checks that none is written while another thread uses it.
unsafe impl Sync for Blocks {}

/// A read finds the previous block, or the new address with the new content; also in a leaf that
/// has just been allocated.
#[test]
fn who_sees_an_entry_sees_its_block() {
    check("log, map", 5, || {
        let map = Arc::new(BlockMap::default());
        let blocks = Arc::new(Blocks(std::array::from_fn(|_| UnsafeCell::new(0))));
        let (read, from) = (Arc::clone(&map), Arc::clone(&blocks));
        let reader = spawn(move || {
            let mut last = 0;
            for _ in 0..2 {
                let found = read.get(1);
                if found.is_mapped() {
                    let place = found.address().get() as usize - 1;
                    assert!(place >= last && found == entry(place as u32 + 1));
                    // SAFETY: as above.
                    assert_eq!(from.0[place].with(|block| unsafe { *block }), 7 + place as u64);
                    last = place;
                }
            }
        });
        for place in 0..2 {
            // SAFETY: as above.
            blocks.0[place].with_mut(|block| unsafe { *block = 7 + place as u64 });
            map.replace(1, entry(place as u32 + 1));
        }
        reader.join().unwrap();
    });
}

/// A checkpoint copies leaves while guests write. A change that it has not copied is in the next
/// one.
#[test]
fn a_checkpoint_has_a_change_or_leaves_its_mark() {
    check("log, checkpoint", 5, || {
        let map = Arc::new(BlockMap::default());
        map.replace(0, entry(1));
        let copied = Arc::clone(&map);
        let worker = spawn(move || {
            let mut leaf = [0; 16]; // both blocks
            copied
                .take_changed(2)
                .into_iter()
                .for_each(|index| _ = copied.copy_leaf(index, &mut leaf));
            leaf
        });
        map.replace(1, entry(2));
        map.replace(1, entry(3));
        let leaf = worker.join().unwrap();
        let newest = leaf[8..] == entry(3).bits().to_le_bytes();
        assert!(newest || map.take_changed(2) == [0], "the next checkpoint does not write it");
    });
}
