use std::io::{Read, Write};
use std::time::Duration;

use super::buffers::Buffers;
use super::*;
use crate::HANG;
use crate::driver::{Memory, MemoryLayout};

fn buffers() -> Buffers {
    let memory = Memory::new(MemoryLayout::single(1 << 20)).unwrap();
    Buffers::new(&memory, 64 << 10).unwrap()
}

fn lengths(request: &Request<'_>, shape: Shape) -> Vec<(u32, bool)> {
    let chain = buffers().load(request, shape).unwrap();
    chain.iter().map(|s| (s.len, s.writable)).collect()
}

#[test]
fn config_fields_are_where_the_specification_puts_them() {
    let bytes: Vec<u8> = (0..60).collect();
    let config = BlkConfig::decode(&bytes);
    assert_eq!(config.capacity_sectors, 0x0706_0504_0302_0100);
    assert_eq!(config.seg_max, 0x0f0e_0d0c);
    assert_eq!(config.blk_size, 0x1716_1514);
    assert_eq!((config.wce, config.num_queues), (0x20, 0x2322));
    assert_eq!(config.max_write_zeroes_seg, 0x3736_3534);
    assert_eq!(config.write_zeroes_may_unmap, 0x38);
}

#[test]
fn config_that_ends_early_reads_as_zeroes() {
    let config = BlkConfig::decode(&[0xff; 38]);
    assert_eq!(config.num_queues, 0xffff);
    assert_eq!(config.max_discard_sectors, 0);
}

#[test]
fn status_bytes_have_names() {
    let names = [0, 1, 2, Status::FILLER, 9].map(Status::from);
    let expected = [Status::Ok, Status::IoErr, Status::Unsupp, Status::Unwritten, Status::Other(9)];
    assert_eq!(names, expected);
}

#[test]
fn default_shape_is_header_data_status() {
    let shape = Shape::default();
    assert_eq!(lengths(&Request::read(0, 4096), shape), [(16, false), (4096, true), (1, true)]);
    assert_eq!(
        lengths(&Request::write(0, &[0; 512]), shape),
        [(16, false), (512, false), (1, true)]
    );
    assert_eq!(lengths(&Request::flush(), shape), [(16, false), (1, true)]);
}

#[test]
fn odd_shapes_carry_the_same_bytes() {
    let shape =
        Shape { segment_bytes: 1000, offset_bytes: 123, split_header_at: 5, join_status: true };
    let read = lengths(&Request::read(0, 2048), shape);
    assert_eq!(read, [(5, false), (11, false), (1000, true), (1000, true), (49, true)]);
    let write = lengths(&Request::write(0, &[0; 2048]), shape);
    assert_eq!(
        write,
        [(5, false), (11, false), (1000, false), (1000, false), (48, false), (1, true)]
    );
}

#[test]
fn ranges_are_encoded_one_after_the_other() {
    let request = Request::write_zeroes(&[(1, 2), (3, 4)], true);
    let mut expected = Vec::new();
    for (sector, sectors) in [(1_u64, 2_u32), (3, 4)] {
        expected.extend(sector.to_le_bytes());
        expected.extend(sectors.to_le_bytes());
        expected.extend(1_u32.to_le_bytes());
    }
    assert_eq!(&*request.out, expected);
}

#[test]
fn a_payload_larger_than_its_slot_is_refused() {
    assert!(buffers().load(&Request::read(0, (64 << 10) + 1), Shape::default()).is_err());
}

/// Makes a backend message: header with request, flags and size of the body, and the body.
fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let header = [request, 1 | flags, body.len() as u32];
    header.iter().flat_map(|word| word.to_ne_bytes()).chain(body.iter().copied()).collect()
}

#[test]
fn config_changes_are_told_from_other_messages() {
    let (mut channel, mut backend) = BackendChannel::pair().unwrap();
    assert!(!channel.wait_config_change(Duration::from_millis(1)).unwrap());
    backend.write_all(&message(9, 0, &[1; 16])).unwrap();
    backend.write_all(&message(2, 0, &[])).unwrap();
    assert!(channel.wait_config_change(HANG).unwrap());
    assert!(!channel.wait_config_change(Duration::from_millis(1)).unwrap());
}

#[test]
fn a_backend_that_wants_a_reply_gets_one() {
    let (mut channel, mut backend) = BackendChannel::pair().unwrap();
    backend.write_all(&message(2, 1 << 3, &[])).unwrap();
    assert!(channel.wait_config_change(HANG).unwrap());
    let mut reply = [0; 20];
    backend.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..], message(2, 1 << 2, &[0; 8]));
}

#[test]
fn a_closed_backend_channel_is_an_error() {
    let (mut channel, backend) = BackendChannel::pair().unwrap();
    drop(backend);
    assert!(channel.wait_config_change(Duration::from_secs(1)).is_err());
}

#[test]
fn taken_heads_come_in_the_order_they_were_taken() {
    let mut bytes = vec![0; 2 * (16 + 4 * 16)];
    let second = 16 + 4 * 16;
    for (head, counter) in [(0, 7_u64), (2, 3)] {
        let record = second + 16 + head * 16;
        bytes[record] = 1;
        bytes[record + 8..record + 16].copy_from_slice(&counter.to_le_bytes());
    }
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let info = vhost::vhost_user::message::VhostUserInflight::new(bytes.len() as u64, 0, 2, 4);
    let area = InflightArea { info, file };
    assert!(area.taken(0).unwrap().is_empty());
    assert_eq!(area.taken(1).unwrap(), [2, 0]);
}
