//! The tests act as the device: they read the avail ring and write the used ring.

use std::sync::atomic::Ordering;

use super::*;
use crate::Error;

fn queue(size: u16, event_idx: bool, indirect: bool) -> (Memory, DriverQueue) {
    let memory = Memory::new(MemoryLayout::single(4 << 20)).unwrap();
    let queue = DriverQueue::new(&memory, QueueOptions { size, event_idx, indirect }).unwrap();
    (memory, queue)
}

fn chain(segments: u64) -> Vec<Segment> {
    let segment = |i| Segment { addr: GuestAddress(i * 4096), len: 16, writable: i % 2 == 1 };
    (0..segments).map(segment).collect()
}

/// Completes the avail entry at position `at` with length `len`.
fn complete(queue: &mut DriverQueue, at: u16, len: u32) {
    let size = queue.options().size;
    let mut head = [0; 2];
    queue.avail.read(4 + 2 * usize::from(at % size), &mut head);
    answer(queue, u32::from(u16::from_le_bytes(head)), len);
}

fn answer(queue: &mut DriverQueue, id: u32, len: u32) {
    let used = queue.used_index();
    let entry = 4 + 8 * usize::from(used % queue.options().size);
    queue.used.write(entry, &id.to_le_bytes());
    queue.used.write(entry + 4, &len.to_le_bytes());
    queue.used.cell16(2).store(used.wrapping_add(1).to_le(), Ordering::Release);
}

fn set_avail_event(queue: &DriverQueue, event: u16) {
    let at = 4 + 8 * usize::from(queue.options().size);
    queue.used.write(at, &event.to_le_bytes());
}

#[test]
fn need_event_is_exact_at_every_offset_from_the_wrap() {
    for base in [0, 1, 100, 0x7fff, 0x8000, 0xfff0, 0xffff_u16] {
        for moved in [1, 2, 3, 64, 0x7fff_u16] {
            let new = base.wrapping_add(moved);
            for offset in [0, 1, moved - 1, moved, moved + 1, 0x8000, 0xffff] {
                let event = base.wrapping_add(offset);
                let expected = offset < moved;
                assert_eq!(need_event(event, new, base), expected, "{event} in {base}..{new}");
            }
        }
    }
}

#[test]
fn need_event_says_no_when_nothing_moved() {
    for index in [0, 1, 0x8000, 0xffff_u16] {
        assert!(!need_event(index, index, index));
        assert!(!need_event(index.wrapping_sub(1), index, index));
    }
}

#[test]
fn kick_is_wanted_once_per_event_across_the_wrap() {
    let (_memory, mut queue) = queue(4, true, false);
    let mut kicks = 0_u32;
    for index in 0..=0x1_0010_u32 {
        // A device that asks for a kick at every third entry.
        set_avail_event(&queue, (index / 3 * 3) as u16);
        queue.add(&chain(1)).unwrap();
        queue.publish();
        kicks += u32::from(queue.needs_kick());
        complete(&mut queue, index as u16, 0);
        queue.pop().unwrap().unwrap();
    }
    assert_eq!(kicks, 0x1_0010 / 3 + 1);
}

#[test]
fn a_batch_is_kicked_if_any_of_it_is_the_event() {
    let (_memory, mut queue) = queue(8, true, false);
    set_avail_event(&queue, 2);
    for _ in 0..2 {
        queue.add(&chain(1)).unwrap();
    }
    assert!(!queue.needs_kick(), "entries 0 and 1 are not the event");
    for _ in 0..3 {
        queue.add(&chain(1)).unwrap();
    }
    assert!(queue.needs_kick(), "entry 2 is");
    assert!(!queue.needs_kick(), "and only once");
}

#[test]
fn no_notify_silences_kicks_only_without_event_idx() {
    for event_idx in [false, true] {
        let (_memory, mut queue) = queue(8, event_idx, false);
        queue.used.write(0, &1_u16.to_le_bytes());
        queue.add(&chain(1)).unwrap();
        assert_eq!(queue.needs_kick(), event_idx);
    }
}

#[test]
fn arming_writes_the_field_that_was_negotiated() {
    let (_memory, mut with) = queue(8, true, false);
    with.disarm_calls();
    assert_eq!(with.avail.cell16(4 + 16).load(Ordering::Relaxed), 0x8000);
    with.arm_calls();
    assert_eq!(with.avail.cell16(4 + 16).load(Ordering::Relaxed), 0);
    let (_memory, mut without) = queue(8, false, false);
    without.disarm_calls();
    assert_eq!(without.avail.cell16(0).load(Ordering::Relaxed), 1);
    without.arm_calls();
    assert_eq!(without.avail.cell16(0).load(Ordering::Relaxed), 0);
}

#[test]
fn direct_chains_are_linked_and_given_back() {
    let (_memory, mut queue) = queue(8, false, false);
    let head = queue.add(&chain(3)).unwrap();
    assert_eq!(queue.free.len(), 5);
    let mut index = head.0;
    for position in 0..3_u64 {
        let mut bytes = [0; 16];
        queue.descriptors.read(usize::from(index) * 16, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), position * 4096);
        let flags = u16::from_le_bytes([bytes[12], bytes[13]]);
        assert_eq!(flags & 1 == 1, position < 2, "NEXT");
        assert_eq!(flags & 2 == 2, position == 1, "WRITE");
        index = u16::from_le_bytes([bytes[14], bytes[15]]);
    }
    queue.publish();
    complete(&mut queue, 0, 17);
    assert_eq!(queue.pop().unwrap(), Some(Used { head, written_bytes: 17 }));
    assert_eq!(queue.free.len(), 8);
    assert_eq!(queue.pop().unwrap(), None);
}

#[test]
fn indirect_chains_take_one_descriptor() {
    let (memory, mut queue) = queue(4, false, true);
    let head = queue.add(&chain(10)).unwrap();
    assert_eq!(queue.free.len(), 3);
    let mut bytes = [0; 16];
    queue.descriptors.read(usize::from(head.0) * 16, &mut bytes);
    assert_eq!(u32::from_le_bytes(bytes[8..12].try_into().unwrap()), 160);
    assert_eq!(u16::from_le_bytes([bytes[12], bytes[13]]), 4);
    let table = GuestAddress(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
    memory.read(table.plus(9 * 16), &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes[..8].try_into().unwrap()), 9 * 4096);
    assert_eq!(u16::from_le_bytes([bytes[12], bytes[13]]), 2, "the last one is not linked");
}

#[test]
fn answers_that_were_never_asked_for_are_found_out() {
    let (_memory, mut queue) = queue(4, false, false);
    let head = queue.add(&chain(1)).unwrap();
    answer(&mut queue, u32::from(head.0), 0);
    answer(&mut queue, u32::from(head.0), 0);
    answer(&mut queue, 77, 0);
    queue.pop().unwrap().unwrap();
    assert!(matches!(queue.pop(), Err(Error::Protocol(_))), "twice the same");
    assert!(matches!(queue.pop(), Err(Error::Protocol(_))), "no such descriptor");
}

#[test]
fn prepared_chains_can_be_sent_again() {
    let (_memory, mut queue) = queue(4, false, false);
    let head = queue.prepare(&chain(3)).unwrap();
    for round in 0..10 {
        queue.send(head);
        complete(&mut queue, round, 1);
        assert_eq!(queue.pop().unwrap().unwrap().head, head);
    }
    assert_eq!(queue.free.len(), 1);
    assert_eq!(queue.in_flight(), 0);
}

#[test]
fn a_chain_that_does_not_fit_changes_nothing() {
    let (_memory, mut queue) = queue(2, false, false);
    assert!(queue.add(&chain(3)).is_err());
    assert_eq!((queue.free.len(), queue.avail_index()), (2, 0));
}

#[test]
fn guest_addresses_cross_touching_regions() {
    let layout = MemoryLayout { regions: 2, region_bytes: 2 << 20, gap_bytes: 0 };
    let memory = Memory::new(layout).unwrap();
    let border = memory.regions()[1].guest;
    let before = GuestAddress(border.0 - 3);
    memory.write(before, b"abcdef").unwrap();
    let mut back = [0; 6];
    memory.read(before, &mut back).unwrap();
    assert_eq!(&back, b"abcdef");
    let end = GuestAddress(border.0 + (2 << 20) - 1);
    assert!(memory.write(end, b"ab").is_err());
}
