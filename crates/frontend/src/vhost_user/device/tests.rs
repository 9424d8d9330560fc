//! Messages that ask for more than a disk has.

use flowstone_block::SectorCount;

use super::*;
use crate::vhost_user::unused_disk::Unused;

fn device(queues_max: u16) -> Device {
    let shared = Arc::new(DeviceShared::new(SectorCount::new(8)));
    let options = DeviceOptions { layer: Arc::new(Unused), shared, queues_max, id: "it".into() };
    Device::new(options, Box::new(Unused))
}

#[test]
fn rings_that_are_too_large_or_no_power_of_two_or_beyond_the_last_are_refused() {
    let mut device = device(2);
    for size in [1, 2, 256, 32_768] {
        device.set_vring_num(1, size).unwrap();
        assert_eq!(u32::from(device.vrings[1].size), size);
    }
    // The last one is 256 in 16 bits.
    for size in [0, 3, 255, 257, 32_767, 32_769, 65_535, 65_536, 65_536 + 256] {
        assert!(device.set_vring_num(1, size).is_err(), "{size}");
        assert_eq!(device.vrings[1].size, 32_768);
    }
    for index in [2, 128, u32::MAX] {
        assert!(device.set_vring_num(index, 256).is_err(), "{index}");
    }
}

#[test]
fn an_in_flight_region_for_more_rings_than_a_disk_has_is_refused() {
    let mut device = device(128);
    let wanted = |queues, size| VhostUserInflight::new(0, 0, queues, size);
    let (given, file) = device.get_inflight_fd(&wanted(128, 256)).unwrap();
    assert_eq!((given.num_queues, given.queue_size), (128, 256));
    device.set_inflight_fd(&given, file).unwrap();
    for (queues, size) in [(129, 256), (u16::MAX, 256), (0, 256), (128, 0), (1, 32_769)] {
        assert!(device.get_inflight_fd(&wanted(queues, size)).is_err(), "{queues} of {size}");
    }
    // One that is large enough for its rings, which a disk does not have.
    let bytes = InflightRegion::bytes_for(129, 32_768);
    let file = InflightRegion::create(bytes).unwrap();
    let given = VhostUserInflight::new(bytes, 0, 129, 32_768);
    assert!(device.set_inflight_fd(&given, file).is_err());
}
