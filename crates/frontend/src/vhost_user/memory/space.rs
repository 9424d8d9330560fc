//! Limits of the address space that guests' memory takes in the process.
//!
//! A monitor's file may be arbitrarily long without taking memory: a few of them would use up the
//! address space of the process, and the next allocation for any disk would fail. A quarter is
//! never given to guests. Of the rest each disk has a reserved part, even if others come first: up
//! to twice the memory of the host, since changed memory is mapped beside the old one. What is left
//! goes to disks that ask for more. Disks come and go: parts are computed for the larger of the
//! existing and the expected number.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use flowstone_block::{lock, mutated};
use rustix::process::{Resource, getrlimit};

/// The user address space on the narrowest supported machines: 47 bits.
const ADDRESS_SPACE: u64 = 1 << 47;

/// The address space that guests' memory takes now.
static TAKEN: Mutex<Taken> = Mutex::new(Taken::nothing());

/// Sets the expected number of disks, and the memory of the host: each disk then has its part
/// reserved, whichever comes first.
pub fn expect_disks(disks: usize, host_bytes: u64) {
    let mut taken = lock(&TAKEN);
    (taken.expected, taken.host_bytes) = (disks, host_bytes);
}

/// The account of one disk's guest: its number in the table of all disks.
#[derive(Debug)]
pub struct DiskSpace(u64);

impl Default for DiskSpace {
    /// Makes the account of a new disk, with nothing taken.
    fn default() -> Self {
        Self(lock(&TAKEN).add_disk())
    }
}

impl Drop for DiskSpace {
    fn drop(&mut self) {
        lock(&TAKEN).disks.remove(&self.0);
    }
}

/// Address space that is taken until this is dropped.
#[derive(Debug)]
pub struct Space {
    disk: Arc<DiskSpace>,
    bytes: u64,
}

impl Space {
    /// Takes `bytes` bytes for the guest of a disk.
    pub fn take(disk: &Arc<DiskSpace>, bytes: u64) -> io::Result<Self> {
        lock(&TAKEN).take(whole(), disk.0, bytes)?;
        Ok(Self { disk: Arc::clone(disk), bytes })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        lock(&TAKEN).give_back(self.disk.0, self.bytes);
    }
}

#[derive(Debug)]
struct Taken {
    /// Number of configured disks, some of which may not be open yet.
    expected: usize,
    host_bytes: u64,
    /// Bytes taken by the guest of each disk.
    disks: BTreeMap<u64, u64>,
    next: u64,
}

impl Taken {
    const fn nothing() -> Self {
        Self { expected: 1, host_bytes: 0, disks: BTreeMap::new(), next: 0 }
    }

    /// Adds a disk and returns its number.
    fn add_disk(&mut self) -> u64 {
        self.next += 1;
        self.disks.insert(self.next, 0);
        self.next
    }

    /// Returns the number of disks that have a reserved part.
    fn count(&self) -> u64 {
        self.disks.len().max(self.expected).max(1) as u64
    }

    /// Returns the reserved part of each disk.
    fn part(&self, whole: u64) -> u64 {
        self.host_bytes.saturating_mul(2).min(for_guests(whole) / 2 / self.count())
    }

    fn take(&mut self, whole: u64, disk: u64, bytes: u64) -> io::Result<()> {
        let (all, part) = (for_guests(whole), self.part(whole));
        let mapped = self.disks.get(&disk).map_or(0, |has| *has).saturating_add(bytes);
        let sum = self.bytes().saturating_add(bytes);
        let is_left = sum.saturating_add(self.promised_beside(disk, part)) <= all;
        if sum > all || !(mapped <= part || is_left) {
            return Err(too_much(bytes, all, part));
        }
        self.disks.insert(disk, mapped);
        Ok(())
    }

    /// Returns the bytes taken by all guests.
    fn bytes(&self) -> u64 {
        self.disks.values().sum()
    }

    /// Returns the bytes still reserved for other disks.
    fn promised_beside(&self, disk: u64, part: u64) -> u64 {
        let others = self.disks.iter().filter(|(number, _)| **number != disk);
        let taken: u64 = others.map(|(_, has)| part.min(*has)).sum();
        let of_others = part * (self.count() - 1);
        mutated("frontend.space.promises-nothing", of_others.saturating_sub(taken), 0)
    }

    fn give_back(&mut self, disk: u64, bytes: u64) {
        if let Some(has) = self.disks.get_mut(&disk) {
            *has = has.saturating_sub(bytes);
        }
    }
}

/// Returns the address space that the process may map.
fn whole() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX).min(ADDRESS_SPACE)
}

/// Returns the share of guests; the rest is for the daemon itself.
fn for_guests(whole: u64) -> u64 {
    whole / 4 * 3
}

fn too_much(bytes: u64, all: u64, part: u64) -> io::Error {
    let gib = |bytes: u64| bytes >> 30;
    io::Error::other(format!(
        "{} GiB more of guest memory do not fit into the {} GiB of address space that all guests may have, of \
         which each disk has {} GiB for itself; raise RLIMIT_AS if it is limited, or serve the guest from \
         another daemon",
        gib(bytes),
        gib(all),
        gib(part)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u64 = 1000;

    /// Makes accounts for `expected` disks on a host with `host_bytes` of memory.
    fn expecting(expected: usize, host_bytes: u64) -> Taken {
        Taken { expected, host_bytes, ..Taken::nothing() }
    }

    /// Two disks of one tenant took three quarters of the address space: no other guest could map
    /// anything.
    #[test]
    fn whatever_the_disks_of_one_tenant_take_each_other_disk_has_its_part() {
        let mut all = expecting(5, 30);
        let mut take = |disk: u64, bytes| all.take(WHOLE, disk, bytes).is_ok();
        // Two greedy disks: of 750, three others have 60 each reserved and not taken; the second
        // one can always take its own part.
        assert!(!take(0, u64::MAX) && !take(0, 511) && take(0, 510));
        assert!(take(1, 60) && !take(1, 1) && !take(0, 1));
        assert!(take(2, 60) && take(3, 20) && take(3, 40) && take(4, 60) && !take(4, 1));
        assert_eq!(all.bytes(), 750);
    }

    #[test]
    fn parts_of_many_disks_are_half_of_what_there_is_at_most() {
        let mut all = expecting(10, 1 << 40);
        assert_eq!(all.part(WHOLE), 37);
        assert!(all.take(WHOLE, 0, 417).is_ok() && all.take(WHOLE, 0, 1).is_err());
        all.give_back(0, 400);
        assert_eq!(all.bytes(), 17);
        all.give_back(0, 17);
        assert_eq!(all.bytes(), 0);
    }

    /// Disks that were added to a running daemon were not counted: one of them could take the parts
    /// of the others.
    #[test]
    fn disks_that_are_added_have_their_parts_and_give_them_back_when_they_go() {
        let mut all = expecting(1, 30);
        let first = all.add_disk();
        let others: Vec<u64> = (0..4).map(|_| all.add_disk()).collect();
        assert!(all.take(WHOLE, first, 511).is_err() && all.take(WHOLE, first, 510).is_ok());
        assert!(others.iter().all(|disk| all.take(WHOLE, *disk, 60).is_ok()));
        others.iter().for_each(|disk| assert!(all.disks.remove(disk).is_some()));
        assert!(all.take(WHOLE, first, 240).is_ok() && all.take(WHOLE, first, 1).is_err());
    }

    #[test]
    fn what_was_taken_comes_back() {
        let disk = Arc::<DiskSpace>::default();
        let has = |disk: &DiskSpace| lock(&TAKEN).disks[&disk.0];
        let before = Space::take(&disk, 1 << 20).unwrap();
        assert_eq!(has(&disk), 1 << 20);
        drop(before);
        assert_eq!(has(&disk), 0);
        assert!(Space::take(&disk, ADDRESS_SPACE).is_err());
        let number = disk.0;
        drop(disk);
        assert!(!lock(&TAKEN).disks.contains_key(&number));
    }
}
