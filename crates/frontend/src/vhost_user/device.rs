//! The device as the monitor sees it: features, memory, rings, configuration.
//!
//! Every change that affects a running ring (its addresses, the guest's memory) first stops the
//! rings, which waits for the requests in flight, and starts them again after. Such changes are
//! rare, the wait is about one disk access, and no running queue ever sees memory unmapped.

use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use flowstone_block::{BlockingDisk, Layer, Op, QueueRunner, mutated};
use tracing::warn;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::config_space::{self, AT_WRITEBACK};
use super::inflight::InflightRegion;
use super::memory::{GuestMemory, RegionAddresses};
use super::protocol::{ID_BYTES, QUEUE_SIZE_MAX, feature};
use super::queue::{QueueParts, VirtQueue};
use super::ring::RingAddresses;
use super::shared::DeviceShared;
use super::vring::{Vring, never_blocking};

/// Memory regions that a monitor may add; QEMU's own limit for its guests is of this order.
const MEMORY_SLOTS_MAX: u64 = 509;

/// The served disk and its options.
pub struct DeviceOptions {
    /// The top of the disk's stack.
    pub layer: Arc<dyn Layer>,
    /// State shared with the control plane.
    pub shared: Arc<DeviceShared>,
    /// The most queues that a guest may use.
    pub queues_max: u16,
    /// The disk's serial number for the guest; at most 20 bytes.
    pub id: String,
}

/// One device and its connection to a monitor.
pub struct Device {
    layer: Arc<dyn Layer>,
    runner: Box<dyn QueueRunner<VirtQueue>>,
    shared: Arc<DeviceShared>,
    id: [u8; ID_BYTES],
    features: u64,
    memory: Arc<GuestMemory>,
    inflight: Option<Arc<InflightRegion>>,
    vrings: Vec<Vring>,
    /// The cache mode chosen by the driver. Only that message and the end of the connection change
    /// it: monitors remember the choice, and repeat it neither after a reset nor to a restarted
    /// daemon, which finds it in the in-flight region.
    write_through_chosen: bool,
    /// The monitor is still to be told to reread the disk's size, which may have changed while no
    /// monitor was connected.
    capacity_is_news: bool,
}

impl Device {
    /// Makes a device without a monitor.
    pub fn new(options: DeviceOptions, runner: Box<dyn QueueRunner<VirtQueue>>) -> Self {
        let mut id = [0; ID_BYTES];
        let length = options.id.len().min(ID_BYTES);
        id[..length].copy_from_slice(&options.id.as_bytes()[..length]);
        Self {
            layer: options.layer,
            runner,
            shared: options.shared,
            id,
            features: 0,
            memory: Arc::default(),
            inflight: None,
            vrings: (0..options.queues_max).map(|_| Vring::default()).collect(),
            write_through_chosen: false,
            capacity_is_news: false,
        }
    }

    /// Disconnects the monitor: stops every ring and unmaps its memory.
    pub fn disconnect(&mut self) {
        self.stop_all();
        self.shared.set_monitor(None);
        self.features = 0;
        self.memory = Arc::new(self.memory.none());
        self.shared.set_guest_memory(&self.memory);
        self.inflight = None;
        self.write_through_chosen = false;
        self.apply_features();
        self.forget_vrings();
    }

    fn forget_vrings(&mut self) {
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
    }

    /// Sets the channel on which configuration changes are announced.
    pub fn set_monitor(&mut self, channel: UnixStream) {
        self.shared.set_monitor(Some(channel));
        self.capacity_is_news = true;
    }

    fn offered_features(&self) -> u64 {
        let geometry = self.layer.geometry();
        let mut features = feature::VERSION_1
            | feature::EVENT_IDX
            | feature::INDIRECT_DESC
            | feature::VHOST_USER_PROTOCOL
            | feature::MQ
            | feature::FLUSH
            | feature::CONFIG_WCE
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::SEG_MAX
            | feature::SIZE_MAX;
        if geometry.readonly {
            features |= feature::RO;
        } else {
            features |= feature::WRITE_ZEROES;
            features |= if geometry.discards { feature::DISCARD } else { 0 };
        }
        features
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Starts the ring if the monitor has configured it completely.
    fn start_if_ready(&mut self, index: usize) -> Result<()> {
        if !self.vrings[index].is_ready() {
            return Ok(());
        }
        let queue = self.build(index).map_err(Error::ReqHandlerError)?;
        self.runner.start(index, queue).map_err(Error::ReqHandlerError)?;
        self.vrings[index].running = true;
        if std::mem::take(&mut self.capacity_is_news) {
            // Monitors ignore this before their rings run. If it cannot be sent, the state is as
            // before.
            let _ = self.shared.announce_capacity(self.shared.capacity());
        }
        Ok(())
    }

    /// Builds the queue of a ring, ready to run.
    fn build(&self, index: usize) -> io::Result<VirtQueue> {
        let vring = &self.vrings[index];
        let ring = vring
            .ring(&self.memory, self.features & feature::EVENT_IDX != 0)
            .map_err(|bad| io::Error::other(format!("queue {index} has a bad ring: {bad:?}")))?;
        let inflight = self.inflight.as_ref().and_then(|region| region.log(index, vring.size));
        let kick = vring.kick.clone().ok_or_else(|| io::Error::other("a ring without a kick"))?;
        let parts = QueueParts {
            ring,
            next_avail: vring.next_avail,
            kick,
            error: vring.error.clone(),
            broken: Arc::clone(&vring.fault),
            shared: Arc::clone(&self.shared),
            geometry: self.layer.geometry(),
            id: self.id,
        };
        Ok(VirtQueue::new(parts, Arc::clone(&vring.call), inflight))
    }

    fn stop(&mut self, index: usize) {
        let vring = &mut self.vrings[index];
        if !std::mem::take(&mut vring.running) {
            return;
        }
        match self.runner.stop(index) {
            Some(queue) => vring.next_avail = queue.next_avail(),
            None => vring.fail(),
        }
    }

    /// Stops all queues in parallel: otherwise a queue that is still running would take new
    /// requests, and so delay the others, while the first one drains.
    fn stop_all(&mut self) {
        for index in 0..self.vrings.len() {
            self.runner.begin_stop(index);
        }
        for index in 0..self.vrings.len() {
            self.stop(index);
        }
    }

    /// Starts every ring that can run; returns the first error, after having tried all.
    fn start_all(&mut self) -> Result<()> {
        let outcomes: Vec<_> =
            (0..self.vrings.len()).map(|index| self.start_if_ready(index)).collect();
        outcomes.into_iter().collect()
    }

    /// Changes a ring's configuration, with the ring stopped.
    fn change_vring(&mut self, index: u32, change: impl FnOnce(&mut Vring)) -> Result<()> {
        self.vring(index)?;
        let index = index as usize;
        self.stop(index);
        change(&mut self.vrings[index]);
        self.start_if_ready(index)
    }

    /// Changes the guest's memory, with all rings stopped.
    fn change_memory(&mut self, memory: GuestMemory) -> Result<()> {
        self.stop_all();
        self.memory = Arc::new(memory);
        self.shared.set_guest_memory(&self.memory);
        self.start_all()
    }

    /// Publishes the negotiated features. Writes go through if the driver has chosen so, or if it
    /// cannot flush (virtio 1.2, section 5.2.6.2).
    fn apply_features(&self) {
        self.shared.set_features(self.features);
        let can_flush = self.features & (feature::FLUSH | feature::CONFIG_WCE) != 0;
        let negotiated = self.features != 0;
        self.shared.set_write_through(self.write_through_chosen || negotiated && !can_flush);
    }

    fn choose_cache_mode(&mut self, write_through: bool) -> Result<()> {
        // With the rings stopped: a write in flight during the flush would be covered neither by
        // this flush nor by write-through, and the driver sends no more flushes.
        let stops =
            mutated("frontend.device.switches-cache-mode-under-running-queues", true, false);
        if stops {
            self.stop_all();
        }
        let flushes =
            mutated("frontend.device.switches-cache-mode-without-flush", write_through, false);
        let flushed = if flushes { self.flush() } else { Ok(()) };
        if flushed.is_ok() {
            self.set_cache_mode(write_through);
        }
        self.start_all()?;
        // Refused, and the old mode stays: the driver reads it back and keeps flushing. The
        // connection is kept, since the queues have other work.
        flushed.map_err(|error| {
            if let Some(unsaid) = self.shared.may_log() {
                warn!(%error, unsaid, "the cache mode stays: the flush before the switch failed");
            }
            Error::InvalidOperation("the flush before the switch to write-through failed")
        })
    }

    fn set_cache_mode(&mut self, write_through: bool) {
        self.write_through_chosen = write_through;
        self.apply_features();
        let region = self.inflight.as_ref();
        let region = mutated("frontend.device.forgets-write-through", region, None);
        if let Some(region) = region {
            region.set_write_through(write_through);
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(BlockingDisk::new(&*self.layer)?.run(Op::Flush)?)
    }
}

fn addresses(region: &VhostUserMemoryRegion) -> RegionAddresses {
    RegionAddresses {
        guest: region.guest_phys_addr,
        monitor: region.user_addr,
        bytes: region.memory_size,
    }
}

fn not_offered<T>(what: &'static str) -> Result<T> {
    Err(Error::InvalidOperation(what))
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.features = 0;
        self.apply_features();
        self.forget_vrings();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered_features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered_features() != 0 {
            return Err(Error::FeatureMismatch);
        }
        self.features = features;
        self.apply_features();
        if features & feature::VHOST_USER_PROTOCOL == 0 {
            // Without the protocol feature there is no message to enable a ring.
            self.vrings.iter_mut().for_each(|vring| vring.enabled = true);
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::BACKEND_REQ)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS_MAX)
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = self.memory.none();
        for (region, file) in regions.iter().zip(files) {
            memory = memory
                .with_region(addresses(region), file, region.mmap_offset)
                .map_err(Error::ReqHandlerError)?;
        }
        self.change_memory(memory)?;
        Ok(None)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.memory.region_count() as u64 >= MEMORY_SLOTS_MAX {
            return Err(Error::InvalidParam);
        }
        let memory = self
            .memory
            .with_region(addresses(region), file, region.mmap_offset)
            .map_err(Error::ReqHandlerError)?;
        self.change_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self
            .memory
            .without_region(region.guest_phys_addr, region.user_addr)
            .map_err(|_| Error::InvalidParam)?;
        self.change_memory(memory)
    }

    fn set_vring_num(&mut self, index: u32, size: u32) -> Result<()> {
        let valid = u16::try_from(size)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= QUEUE_SIZE_MAX);
        let size = valid.ok_or(Error::InvalidParam)?;
        self.change_vring(index, |vring| vring.size = size)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        avail: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = RingAddresses { descriptors, avail, used };
        self.change_vring(index, |vring| vring.addresses = Some(addresses))
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change_vring(index, |vring| vring.next_avail = base as u16)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        self.stop(index as usize);
        let vring = self.vring(index)?;
        // A ring whose position has been read stays stopped until a new kick descriptor is set.
        let state = VhostUserVringState::new(index, u32::from(vring.next_avail));
        vring.reset();
        Ok(state)
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let kick = kick.map(never_blocking).transpose().map_err(Error::ReqHandlerError)?;
        let kick = kick.map(Arc::new);
        self.change_vring(u32::from(index), |vring| vring.kick = kick)
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let call = call.map(never_blocking).transpose().map_err(Error::ReqHandlerError)?;
        self.vring(u32::from(index))?.call.replace(call);
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, error: Option<File>) -> Result<()> {
        let error = error.map(never_blocking).transpose().map_err(Error::ReqHandlerError)?;
        let error = error.map(Arc::new);
        self.change_vring(u32::from(index), |vring| vring.error = error)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        if self.vring(index)?.enabled == enable {
            return Ok(());
        }
        self.change_vring(index, |vring| vring.enabled = enable)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let space = config_space::encode(
            &self.layer.geometry(),
            self.shared.capacity(),
            self.vrings.len() as u16,
            self.write_through_chosen,
        );
        Ok(config_space::window(&space, offset, size))
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        match (offset, bytes) {
            (AT_WRITEBACK, [writeback]) => self.choose_cache_mode(*writeback == 0),
            _ => Err(Error::InvalidParam),
        }
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, queue_size) = (wanted.num_queues, wanted.queue_size);
        let too_many = usize::from(queues) > self.vrings.len();
        if too_many || queues == 0 || queue_size == 0 || queue_size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let bytes = InflightRegion::bytes_for(queues, queue_size);
        let file = InflightRegion::create(bytes).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(bytes, 0, queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let region = InflightRegion::map(
            file,
            given.mmap_offset,
            given.mmap_size,
            given.num_queues,
            given.queue_size,
        )
        .map_err(Error::ReqHandlerError)?;
        self.write_through_chosen |= region.write_through();
        region.set_write_through(self.write_through_chosen);
        self.apply_features();
        self.inflight = Some(region);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        not_offered("a disk has no GPU socket")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered("shared objects are not offered")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        not_offered("device state transfer is not offered")
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered("device state transfer is not offered")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered("shared memory regions are not offered")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        not_offered("dirty logging is not offered")
    }
}

#[cfg(test)]
mod tests;
