//! Detects whether the host has stayed up since a redo file was last written.
//!
//! Neither of the two identifiers of a boot is sufficient alone. Containers may have a boot number
//! of their own, a new one at each start, although the host stays up (systemd-nspawn, LXC); and the
//! computed start time of the host moves when its clock is set. So the boot is the same if either
//! of them matches. However, a clock without a battery begins at the same time at each boot: where
//! the daemon left a file in the memory of the host ([`redo`](super::redo)), and that file is
//! missing, the start time alone proves nothing. The boot has ended if this host was started after
//! the last timestamp in the redo file. All other cases, such as another host that shares the
//! storage, are uncertain, and decided by the operator.

use std::io;

use flowstone_block::mutated;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Maximum apparent shift of the host's start time between two reads of its clocks.
const TOLERANCE_MS: i64 = 5000;

/// Clock readings of the host, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clocks {
    /// When the host was started.
    pub started_ms: i64,
    pub now_ms: i64,
}

/// A boot of a host, as seen by this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    pub number: u128,
    /// A hash of the host's identity.
    pub host: u64,
    pub clocks: Clocks,
}

/// Boot in which a redo file was written, as recorded there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Witness {
    pub number: u128,
    /// Earlier versions wrote neither this field nor the next one.
    pub host: Option<u64>,
    pub started_ms: Option<i64>,
    /// Time of the last write.
    pub alive_ms: i64,
    /// The file left in the memory of the host is missing.
    pub is_missed: bool,
}

/// Fate of the boot in which a redo file was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// The host has stayed up: data in its memory is still there.
    SameBoot,
    /// The host has been restarted: data that was not durable may be lost.
    Restarted,
    /// Either is possible.
    Unsure,
}

impl Clocks {
    pub fn read() -> Self {
        let millis = |time: Timespec| time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
        let now_ms = millis(clock_gettime(ClockId::Realtime));
        Self { started_ms: now_ms - millis(clock_gettime(ClockId::Boottime)), now_ms }
    }
}

impl Boot {
    pub fn read() -> io::Result<Self> {
        Ok(Self { number: boot_number()?, host: host_number(), clocks: Clocks::read() })
    }

    /// Judges a redo file by its witness.
    pub fn since(&self, written: &Witness) -> Since {
        let started_ms = self.clocks.started_ms;
        let is_close = |before: i64| (started_ms - before).abs() <= TOLERANCE_MS;
        let same_host = written.host.is_none_or(|host| host == self.host);
        let same_host =
            mutated("qcow2.redo.takes-another-host-for-a-restarted-one", same_host, true);
        // A clock without a battery begins at the same time at each boot, and hosts of one rack
        // start at the same time as each other.
        let goes_on = self.clocks.now_ms + TOLERANCE_MS >= written.alive_ms;
        let same_start = written.started_ms.is_some_and(is_close) && same_host && goes_on;
        let same_start = mutated("qcow2.redo.believes-the-boot-number-alone", same_start, false);
        let same_number = self.number == written.number;
        let same_number =
            mutated("qcow2.redo.believes-the-time-of-the-start-alone", same_number, false);
        let believes_start = !written.is_missed;
        let believes_start =
            mutated("qcow2.redo.believes-a-start-that-may-be-another", believes_start, true);
        if same_number || same_start && believes_start {
            return Since::SameBoot;
        }
        if same_start {
            return Since::Unsure;
        }
        let later = started_ms > written.alive_ms;
        let later = mutated("qcow2.redo.takes-another-boot-for-a-restart", later, true);
        if same_host && later { Since::Restarted } else { Since::Unsure }
    }
}

/// Returns the number of this boot of the host.
pub fn boot_number() -> io::Result<u128> {
    read_uuid("/proc/sys/kernel/random/boot_id")
}

pub fn random_number() -> io::Result<u128> {
    read_uuid("/proc/sys/kernel/random/uuid")
}

fn read_uuid(path: &str) -> io::Result<u128> {
    let text = std::fs::read_to_string(path)?;
    u128::from_str_radix(&text.trim().replace('-', ""), 16)
        .map_err(|_| io::Error::other(format!("there is no number in {path}")))
}

/// Hash of the host's machine ID; without one, of its host name.
fn host_number() -> u64 {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let is_number = id.trim().len() == 32 && id.trim().bytes().all(|it| it.is_ascii_hexdigit());
    let text = match is_number {
        true => id,
        false => std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default(),
    };
    // FNV-1a: the ID itself must not be spread in files.
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.trim().bytes().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const START_MS: i64 = 1_000_000 * HOUR_MS;
    const HERE: Boot = Boot {
        number: 7,
        host: 3,
        clocks: Clocks { started_ms: START_MS, now_ms: START_MS + 10 * HOUR_MS },
    };
    const WRITTEN: Witness = Witness {
        number: 7,
        host: Some(3),
        started_ms: Some(START_MS),
        alive_ms: START_MS + 9 * HOUR_MS,
        is_missed: false,
    };

    #[test]
    fn a_boot_is_the_same_if_its_number_or_its_start_is() {
        assert_eq!(HERE.since(&WRITTEN), Since::SameBoot);
        // systemd-nspawn and LXC give each start of a container its own boot number.
        let container = Witness { number: 8, ..WRITTEN };
        assert_eq!(HERE.since(&container), Since::SameBoot);
        for moved in [-5000, 5000] {
            let moved = Witness { started_ms: Some(START_MS + moved), ..container };
            assert_eq!(HERE.since(&moved), Since::SameBoot);
        }
        let clock_set = Witness { started_ms: Some(START_MS - HOUR_MS), ..WRITTEN };
        assert_eq!(HERE.since(&clock_set), Since::SameBoot);
        let without = Witness { host: None, started_ms: None, ..WRITTEN };
        assert_eq!(HERE.since(&without), Since::SameBoot);
    }

    #[test]
    fn a_host_has_been_restarted_if_it_was_started_after_the_last_sign_of_life() {
        let cut = Witness {
            number: 8,
            started_ms: Some(START_MS - 90 * HOUR_MS),
            alive_ms: START_MS - 1,
            ..WRITTEN
        };
        assert_eq!(HERE.since(&cut), Since::Restarted);
        assert_eq!(HERE.since(&Witness { host: None, started_ms: None, ..cut }), Since::Restarted);
    }

    #[test]
    fn another_host_and_a_boot_that_was_there_before_are_not_sure() {
        let other = Witness { number: 8, started_ms: Some(START_MS - HOUR_MS), ..WRITTEN };
        assert_eq!(HERE.since(&other), Since::Unsure, "this one was up when it was written");
        let other = Witness { alive_ms: START_MS - 1, host: Some(4), ..other };
        assert_eq!(HERE.since(&other), Since::Unsure, "another host was up");
        let old = Witness { number: 8, host: None, started_ms: None, ..WRITTEN };
        assert_eq!(HERE.since(&old), Since::Unsure);
    }

    /// Power came back to both at once: the records of a host that lost power again were trusted by
    /// the other, although the data may be lost.
    #[test]
    fn another_host_that_was_started_at_the_same_moment_is_not_the_same_boot() {
        let other = Witness { number: 8, host: Some(4), ..WRITTEN };
        assert_eq!(HERE.since(&other), Since::Unsure);
    }

    /// Its clock begins at the same time at each boot: after a power cut its records were trusted.
    #[test]
    fn a_host_whose_clock_stands_before_the_last_sign_of_life_is_not_in_the_same_boot() {
        let cut = Witness { number: 8, alive_ms: HERE.clocks.now_ms + HOUR_MS, ..WRITTEN };
        assert_eq!(HERE.since(&cut), Since::Unsure);
    }

    /// It was up longer than in the previous boot, whose clock had begun at the same time: after a
    /// power cut its records were trusted.
    #[test]
    fn the_same_start_alone_is_not_sure_where_the_memory_of_the_host_has_nothing() {
        let cut = Witness { number: 8, is_missed: true, ..WRITTEN };
        assert_eq!(HERE.since(&cut), Since::Unsure);
        assert_eq!(HERE.since(&Witness { number: 7, ..cut }), Since::SameBoot);
        let before = Witness { started_ms: Some(0), alive_ms: START_MS - 1, ..cut };
        assert_eq!(HERE.since(&before), Since::Restarted);
    }

    #[test]
    fn the_host_tells_its_boot() {
        let (one, other) = (Boot::read().unwrap(), Boot::read().unwrap());
        assert_eq!((one.number, one.host), (other.number, other.host));
        assert!(one.clocks.started_ms < one.clocks.now_ms);
    }
}
