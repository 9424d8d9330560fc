//! A disk's share of the devices that hold its files.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use flowstone_block::{Metric, lock};
use flowstone_fileio::FileIo;

use super::file::SharedFile;
use super::host::Device;
use super::member::{HeldBack, Member};
use super::presence::Presence;
use super::vm::DeviceVm;
use crate::Weight;
use crate::nanoseconds::Nanoseconds;

/// The devices of all disks, by number.
#[derive(Default)]
pub struct Devices {
    known: Mutex<BTreeMap<u64, Weak<Device>>>,
    time: Nanoseconds,
}

impl Devices {
    #[cfg(test)]
    pub(super) fn with_clock(clock: flowstone_block::Clock) -> Arc<Self> {
        Arc::new(Self { known: Mutex::default(), time: Nanoseconds::of(clock) })
    }

    fn get(&self, number: u64) -> Arc<Device> {
        let mut devices = lock(&self.known);
        devices.retain(|_, device| device.strong_count() > 0);
        let known = devices.get(&number).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let device = Arc::new(Device::new(self.time.clone()));
            devices.insert(number, Arc::downgrade(&device));
            device
        })
    }
}

/// Weight and VM of a disk, at all devices that hold its files.
pub struct DiskShare {
    devices: Arc<Devices>,
    state: Mutex<State>,
    held_back: Arc<HeldBack>,
}

struct State {
    vm: DeviceVm,
    weight: Weight,
    members: BTreeMap<u64, Weak<Member>>,
}

impl DiskShare {
    /// Metrics of a disk's share.
    pub const METRICS: &[Metric<Self>] = &[
        Metric::counter(
            "flowstone_held_back_requests_total",
            "Requests to files that waited for other disks",
            |it| it.held_back().0 as f64,
        ),
        Metric::counter(
            "flowstone_held_back_seconds_total",
            "Total time that requests to files waited for other disks",
            |it| it.held_back().1.as_secs_f64(),
        ),
    ];

    /// Makes the share of a new disk, which is alone in its VM until its VM is [set](Self::set_vm).
    /// `number` is unique among disks.
    pub fn new(devices: Arc<Devices>, number: u32, weight: Weight) -> Arc<Self> {
        let vm = DeviceVm { id: number, weight: DeviceVm::UNKNOWN };
        let state = Mutex::new(State { vm, weight, members: BTreeMap::new() });
        Arc::new(Self { devices, state, held_back: Arc::default() })
    }

    /// Charges a file's requests to this disk. A file in memory is on no device, and is returned as
    /// it is.
    pub fn charge(&self, file: Box<dyn FileIo>) -> Box<dyn FileIo> {
        let Some(number) = file.device() else { return file };
        let mut state = lock(&self.state);
        let (vm, weight) = (state.vm, state.weight);
        let known = state.members.get(&number).and_then(Weak::upgrade);
        let member = known.unwrap_or_else(|| {
            let device = self.devices.get(number);
            let key = device.lock().scheduler.add_disk(vm, weight);
            let held_back = Arc::clone(&self.held_back);
            let member = Arc::new(Member { device, key, held_back });
            state.members.insert(number, Arc::downgrade(&member));
            member
        });
        Box::new(SharedFile::new(file, member))
    }

    /// Sets the VM of the disk, and the VM's weight on a contended device.
    pub fn set_vm(&self, vm: DeviceVm) {
        let mut state = lock(&self.state);
        if state.vm == vm {
            return;
        }
        state.vm = vm;
        for member in state.members.values().filter_map(Weak::upgrade) {
            member.device.lock().scheduler.set_vm(member.key, vm);
        }
    }

    /// Returns the VM of the disk, as set last.
    pub fn vm(&self) -> DeviceVm {
        lock(&self.state).vm
    }

    /// Returns the disk's weight among those of its VM.
    pub fn weight(&self) -> Weight {
        lock(&self.state).weight
    }

    /// Sets the disk's weight among those of its VM.
    pub fn set_weight(&self, weight: Weight) {
        let mut state = lock(&self.state);
        state.weight = weight;
        for member in state.members.values().filter_map(Weak::upgrade) {
            member.device.lock().scheduler.set_weight(member.key, weight);
        }
    }

    /// Returns the number of requests to its files that waited for their turn, and their total
    /// waiting time.
    pub fn held_back(&self) -> (u64, Duration) {
        self.held_back.read()
    }

    /// Returns what it has at all its devices now.
    pub fn presence(&self) -> Presence {
        let state = lock(&self.state);
        let mut all = Presence::default();
        for member in state.members.values().filter_map(Weak::upgrade) {
            let here = member.device.lock().scheduler.presence(member.key);
            all.in_flight += here.in_flight;
            all.waiting += here.waiting;
            all.depth += here.depth;
        }
        all
    }

    /// Returns the number of syncs of its files.
    pub fn syncs(&self) -> u64 {
        self.held_back.syncs()
    }
}
