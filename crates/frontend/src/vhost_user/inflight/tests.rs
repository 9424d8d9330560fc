use std::os::unix::fs::FileExt;

use super::*;

fn region() -> Arc<InflightRegion> {
    let bytes = InflightRegion::bytes_for(2, 8);
    let file = InflightRegion::create(bytes).unwrap();
    InflightRegion::map(file, 0, bytes, 2, 8).unwrap()
}

fn heads(log: &mut InflightLog, used_index: u16) -> Vec<u16> {
    log.recover(used_index).iter().map(|undone| undone.head).collect()
}

/// Test helpers for one thread with both halves.
impl InflightLog {
    fn begin(&mut self, head: u16) {
        self.avail.begin(head);
        self.used.take_over(head);
    }

    fn begin_again(&mut self, undone: Undone) {
        self.avail.begin_again(undone);
        self.used.take_over(undone.head);
    }

    fn abandon(&mut self, head: u16) {
        self.avail.abandon(head);
    }

    fn handed_over(&mut self) {
        self.used.handed_over();
    }

    fn complete(&mut self, head: u16) {
        self.used.complete(head);
    }

    fn published(&mut self, used_index: u16) {
        self.used.published(used_index);
    }
}

fn undone(head: u16, started: u8, in_hand: u8) -> Undone {
    Undone { head, started, in_hand }
}

#[test]
fn a_life_counts_for_what_it_started_and_for_no_later_request_of_the_same_head() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.begin(3);
    log.begin(4);
    for lives in 1..=20 {
        let mut log = region.log(0, 8).unwrap();
        let found = log.recover(0);
        assert_eq!(found, [undone(3, lives.min(15), lives.min(15)), undone(4, 1, 1)]);
        // Only one of them is replayed before the daemon dies again.
        log.begin_again(found[0]);
    }
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.complete(3);
    log.published(1);
    log.begin(3);
    let found = region.log(0, 8).unwrap().recover(1);
    assert_eq!(found, [undone(4, 1, 1), undone(3, 1, 1)]);
}

#[test]
fn what_the_disk_has_is_not_held_against_a_request() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.begin(3);
    log.handed_over();
    log.begin(4);
    for life in 2..=4 {
        log = region.log(0, 8).unwrap();
        let found = log.recover(0);
        assert_eq!(found, [undone(3, life - 1, 0), undone(4, 1, 1)]);
        log.begin_again(found[0]);
        log.handed_over();
    }
    // Completed requests are not replayed.
    log.begin(5);
    log.complete(5);
    log.published(1);
    log.handed_over();
    assert_eq!(heads(&mut region.log(0, 8).unwrap(), 1), [3, 4]);
}

#[test]
fn a_daemon_that_counted_no_lives_had_one() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.used.ring.write(RingLog::entry(2) + AT_MARK, u16::from_ne_bytes([1, 0]));
    assert_eq!(region.log(0, 8).unwrap().recover(0), [undone(2, 1, 0)]);
}

/// The list of the last batch still names heads that have been taken again.
#[test]
fn a_head_that_was_published_and_taken_again_is_undone() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.begin(5);
    log.complete(5);
    log.published(1);
    log.begin(5);
    assert_eq!(heads(&mut region.log(0, 8).unwrap(), 1), [5]);
}

/// Early completion: a request completed while the rest of its batch was being submitted, and the
/// other half has taken its head again. The entry belongs to that half until it is handed over.
#[test]
fn a_hand_over_leaves_heads_alone_that_have_come_back() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.begin(5);
    log.begin(6);
    log.complete(5);
    log.published(1);
    log.avail.begin(5);
    log.handed_over();
    let mut found = region.log(0, 8).unwrap().recover(1);
    found.sort_by_key(|undone| undone.head);
    assert_eq!(found, [undone(5, 1, 1), undone(6, 1, 0)]);
}

#[test]
fn what_was_begun_and_not_published_is_undone_in_order() {
    let region = region();
    let mut log = region.log(1, 8).unwrap();
    assert!(heads(&mut log, 0).is_empty());
    for head in [5, 2, 7, 1] {
        log.begin(head);
    }
    log.complete(7);
    log.published(1);
    let mut next_life = region.log(1, 8).unwrap();
    assert_eq!(heads(&mut next_life, 1), [5, 2, 1]);
    assert!(heads(&mut region.log(0, 8).unwrap(), 0).is_empty());
}

#[test]
fn dying_between_used_index_and_marks_repeats_nothing() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    for head in [0, 1, 2, 3] {
        log.begin(head);
    }
    log.complete(3);
    log.complete(1);
    // The ring's index went from 0 to 2, and then we died.
    assert_eq!(heads(&mut region.log(0, 8).unwrap(), 2), [0, 2]);
}

#[test]
fn dying_before_the_used_index_moves_repeats_the_batch() {
    let region = region();
    let mut log = region.log(0, 8).unwrap();
    log.recover(0);
    log.begin(4);
    log.begin(6);
    log.complete(6);
    assert_eq!(heads(&mut region.log(0, 8).unwrap(), 0), [4, 6]);
}

#[test]
fn a_region_for_smaller_or_fewer_rings_is_not_used() {
    let region = region();
    assert!(region.log(2, 8).is_none());
    assert!(region.log(0, 16).is_none());
    assert!(region.log(usize::MAX, 8).is_none());
    let map = |file_bytes, offset, bytes| {
        let file = InflightRegion::create(file_bytes).unwrap();
        InflightRegion::map(file, offset, bytes, 2, 8).is_err()
    };
    assert!(map(64, 0, 64));
    assert!(map(64, 0, 4096));
    assert!(map(4096, u64::MAX, 4096));
}

/// The whole file of a monitor's region was mapped: one disk could use up the address space of all.
#[test]
fn of_a_region_what_its_rings_need_is_mapped_and_a_disk_has_so_many_at_most() {
    let file = InflightRegion::create(1 << 40).unwrap();
    let map =
        |queues, size| InflightRegion::map(file.try_clone().unwrap(), 0, 1 << 40, queues, size);
    assert_eq!(map(2, 8).unwrap().mapping.size() as u64, InflightRegion::bytes_for(2, 8));
    assert!(map(128, 32_768).is_ok() && map(129, 32_768).is_err());
}

/// Monitors keep the memory and later versions read it: fields must be at the offsets of the table
/// above.
#[test]
fn fields_lie_where_the_picture_says() {
    let bytes = InflightRegion::bytes_for(2, 8);
    assert_eq!(bytes, 2 * 192 + 64);
    let file = InflightRegion::create(bytes).unwrap();
    let seen = file.try_clone().unwrap();
    let field = |at: u64, bytes: usize| {
        let mut value = [0; 8];
        seen.read_exact_at(&mut value[..bytes], at).unwrap();
        u64::from_le_bytes(value)
    };
    let region = InflightRegion::map(file, 0, bytes, 2, 8).unwrap();
    let (ring, entry) = (192, 192 + 16 + 3 * 16);
    let mut log = region.log(1, 8).unwrap();
    log.recover(6);
    let [version, rings_size, used_idx] = [8, 10, 14].map(|at| field(ring + at, 2));
    assert_eq!([version, rings_size, used_idx], [1, 8, 6]);
    log.begin(7);
    log.begin(3);
    assert_eq!([field(entry, 2), field(entry + 8, 8)], [0x1101, 1]);
    log.handed_over();
    assert_eq!(field(entry, 2), 0x1001);
    log.begin_again(undone(3, 1, 0));
    assert_eq!(field(entry, 2), 0x2101);
    log.complete(7);
    log.complete(3);
    assert_eq!([field(ring + 12, 2), field(entry + 6, 2)], [3, 7]);
    log.published(8);
    assert_eq!([field(ring + 14, 2), field(entry, 2)], [8, 0]);
    log.begin(3);
    log.abandon(3);
    assert_eq!(field(entry, 2), 0);
    let mut first_ring = vec![0; 192];
    seen.read_exact_at(&mut first_ring, 0).unwrap();
    assert!(first_ring.iter().all(|byte| *byte == 0), "{first_ring:?}");
}

#[test]
fn a_later_life_is_told_that_the_disk_writes_through() {
    let bytes = InflightRegion::bytes_for(2, 8);
    let file = InflightRegion::create(bytes).unwrap();
    let life = || InflightRegion::map(file.try_clone().unwrap(), 0, bytes, 2, 8).unwrap();
    assert!(!life().write_through());
    life().set_write_through(true);
    assert!(life().write_through());
    // The mark lies behind the rings and touches none of them.
    assert!(life().log(1, 8).unwrap().recover(0).is_empty());
    let mut mark = [0];
    file.read_exact_at(&mut mark, 2 * 192).unwrap();
    assert_eq!(mark, [1]);
    life().set_write_through(false);
    assert!(!life().write_through());
}

/// A monitor that truncated the memory would kill the daemon.
#[test]
fn the_memory_of_a_region_keeps_its_size() {
    let file = InflightRegion::create(4096).unwrap();
    assert!(ftruncate(&file, 0).is_err());
    assert!(ftruncate(&file, 8192).is_err());
    assert!(fcntl_add_seals(&file, SealFlags::WRITE).is_err());
}
