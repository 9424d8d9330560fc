//! How much address space guests' memory may take of the process.
//!
//! A file of a monitor's may be as long as it likes and take no memory: some of them would use up
//! what the process can map, and the next allocation for any disk fails. A quarter is never theirs.
//! Of the rest each disk has a part that no other one gets, even if it comes first: enough for all
//! memory that the host has, twice, since a changed memory is mapped beside the old one. What is
//! left goes to those that ask for more.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flowstone_block::mutant;
use rustix::process::{Resource, getrlimit};

/// What a process has on the narrowest machines that we run on, 47 bits.
const ADDRESS_SPACE: u64 = 1 << 47;

/// What all guests have now.
static TAKEN: Mutex<Taken> = Mutex::new(Taken { disks: 1, part: 0, bytes: 0, within_parts: 0 });

/// Says how many disks there will be, on a host with so much memory: each is to have its part.
pub fn expect_disks(disks: usize, host_bytes: u64) {
    lock(&TAKEN).expect(disks as u64, host_bytes, whole());
}

/// What the guest of one disk has.
#[derive(Debug, Default)]
pub struct DiskSpace(Mutex<u64>);

/// Address space that is taken, until this is dropped.
#[derive(Debug)]
pub struct Space {
    disk: Arc<DiskSpace>,
    bytes: u64,
}

impl Space {
    /// Takes so many bytes for the guest of a disk.
    pub fn take(disk: &Arc<DiskSpace>, bytes: u64) -> io::Result<Self> {
        let (mut taken, mut has) = (lock(&TAKEN), lock(&disk.0));
        taken.take(whole(), &mut has, bytes)?;
        Ok(Self { disk: Arc::clone(disk), bytes })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        lock(&TAKEN).give_back(&mut lock(&self.disk.0), self.bytes);
    }
}

#[derive(Debug)]
struct Taken {
    disks: u64,
    /// What each disk can have whatever the others do.
    part: u64,
    bytes: u64,
    /// Of the bytes, those that are within the parts of their disks.
    within_parts: u64,
}

impl Taken {
    /// Before any guest has memory.
    fn expect(&mut self, disks: u64, host_bytes: u64, whole: u64) {
        self.disks = disks.max(1);
        self.part = host_bytes.saturating_mul(2).min(for_guests(whole) / 2 / self.disks);
    }

    fn take(&mut self, whole: u64, has: &mut u64, bytes: u64) -> io::Result<()> {
        let all = for_guests(whole);
        let (mapped, sum) = (has.saturating_add(bytes), self.bytes.saturating_add(bytes));
        let is_left = sum.saturating_add(self.promised_beside(*has)) <= all;
        if sum > all || !(mapped <= self.part || is_left) {
            return Err(too_much(bytes, all, self.part));
        }
        self.within_parts += mapped.min(self.part) - self.part.min(*has);
        (self.bytes, *has) = (sum, mapped);
        Ok(())
    }

    /// What other disks have not taken yet of their parts, for one that has so much.
    fn promised_beside(&self, has: u64) -> u64 {
        let of_others = self.part * (self.disks - 1);
        let taken = self.within_parts - has.min(self.part);
        if mutant("frontend.space.promises-nothing") { 0 } else { of_others.saturating_sub(taken) }
    }

    fn give_back(&mut self, has: &mut u64, bytes: u64) {
        let left = *has - bytes;
        self.bytes -= bytes;
        self.within_parts -= self.part.min(*has) - self.part.min(left);
        *has = left;
    }
}

/// What the process may map.
fn whole() -> u64 {
    getrlimit(Resource::As).current.unwrap_or(u64::MAX).min(ADDRESS_SPACE)
}

/// The rest is for the daemon itself.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: u64 = 1000;

    /// So many disks, on a host with so much memory.
    fn taken(disks: u64, host_bytes: u64) -> Taken {
        let mut taken = Taken { disks: 1, part: 0, bytes: 0, within_parts: 0 };
        taken.expect(disks, host_bytes, WHOLE);
        taken
    }

    /// Two disks of one tenant took three quarters of the address space: no other guest could map
    /// anything.
    #[test]
    fn whatever_the_disks_of_one_tenant_take_each_other_disk_has_its_part() {
        let mut all = taken(5, 30);
        let mut has = [0; 5];
        let mut take = |disk: usize, bytes| all.take(WHOLE, &mut has[disk], bytes).is_ok();
        // Two hogs: of 750, three others have 60 each; what the second one has within its part is
        // never in question.
        assert!(!take(0, u64::MAX) && !take(0, 511) && take(0, 510));
        assert!(take(1, 60) && !take(1, 1) && !take(0, 1));
        assert!(take(2, 60) && take(3, 20) && take(3, 40) && take(4, 60) && !take(4, 1));
        assert_eq!((all.bytes, all.within_parts), (750, 300));
    }

    #[test]
    fn parts_of_many_disks_are_half_of_what_there_is_at_most() {
        let mut all = taken(10, 1 << 40);
        assert_eq!(all.part, 37);
        let mut large = 0;
        assert!(
            all.take(WHOLE, &mut large, 417).is_ok() && all.take(WHOLE, &mut large, 1).is_err()
        );
        all.give_back(&mut large, 400);
        assert_eq!((large, all.bytes, all.within_parts), (17, 17, 17));
        all.give_back(&mut large, 17);
        assert_eq!((large, all.bytes, all.within_parts), (0, 0, 0));
    }

    #[test]
    fn what_was_taken_comes_back() {
        let disk = Arc::<DiskSpace>::default();
        let before = Space::take(&disk, 1 << 20).unwrap();
        assert!(lock(&TAKEN).bytes >= 1 << 20 && *lock(&disk.0) == 1 << 20);
        drop(before);
        assert_eq!(*lock(&disk.0), 0);
        assert!(Space::take(&disk, ADDRESS_SPACE).is_err());
    }
}
