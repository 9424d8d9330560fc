//! The setup of a run: session, memory and rings, and their recovery when a backend dies.
//!
//! All mismatches between a workload and a device are detected here, before the first request. The
//! rings themselves belong to the workers; the stage keeps the parts that are passed to a backend.

use std::iter;
use std::time::{Duration, Instant};

use super::check::Checker;
use super::lane::{Lane, LaneOptions};
use super::map::VerifyMap;
use super::options::{Aside, Limit, LoadOptions, Mix, Order, Workload};
use super::pace::Pace;
use super::source::{Kind, Source};
use crate::client::{BlkConfig, ClientOptions, InflightArea, Negotiated, Ring, RingShare, Session};
use crate::driver::{Memory, MemoryLayout, QueueOptions};
use crate::virtio::{
    F_DISCARD, F_EVENT_IDX, F_FLUSH, F_INDIRECT_DESC, F_RO, F_SEG_MAX, F_SIZE_MAX, F_WRITE_ZEROES,
    SECTOR_BYTES,
};
use crate::{Error, Result};

/// Largest queue of the front end, which is QEMU's limit as well.
const QUEUE_SIZE_MAX: usize = 1024;
/// The workloads of the last queue, if it does something else.
const DISCARDS: Workload = Workload { order: Order::Random, mix: Mix::DISCARD };

/// The state that outlives a backend.
#[derive(Debug)]
pub(super) struct Stage {
    session: Session,
    /// How it connects again, with the features of the first time.
    client: ClientOptions,
    /// Time to wait for the next backend.
    reconnect: Option<Duration>,
    memory: Memory,
    shares: Vec<RingShare>,
    inflight: Option<InflightArea>,
    reconnects: u64,
}

impl Stage {
    /// Connects, allocates all lanes and starts their rings, for one of the disks of a run.
    pub(super) fn set_up(
        options: &LoadOptions,
        disk: usize,
        map: Option<VerifyMap>,
    ) -> Result<(Self, Vec<Lane>)> {
        let began = Instant::now();
        // A backend that dies at the beginning is handled like one that dies later.
        let may_die = |result: &Result<_>| {
            let died = matches!(result, Err(Error::Disconnected(_)));
            died && options.reconnect.is_some_and(|time| began.elapsed() < time)
        };
        let connect = || {
            let mut session = Session::open(&options.client)?;
            let config = session.config()?;
            Ok((session, config))
        };
        let mut connected = connect();
        while may_die(&connected) {
            connected = connect();
        }
        let (session, config) = connected?;
        let negotiated = *session.negotiated();
        let plan = Plan::new(options, &negotiated, &config)?;
        let memory = Memory::new(MemoryLayout::single(plan.memory_bytes()))?;
        let lanes = plan.lanes(&memory, disk, map)?;
        let shares =
            lanes.iter().map(|lane| lane.ring.share().try_clone()).collect::<Result<_>>()?;
        let Negotiated { features, protocol, .. } = negotiated;
        let client = ClientOptions { features, protocol, ..options.client.clone() };
        let (reconnect, inflight, reconnects) = (options.reconnect, None, 0);
        let mut stage = Stage { session, client, reconnect, memory, shares, inflight, reconnects };
        match stage.start() {
            Err(Error::Disconnected(_)) if reconnect.is_some() => stage.recover()?,
            done => done?,
        }
        Ok((stage, lanes))
    }

    /// Returns whether the backend has closed the connection.
    pub(super) fn lost_backend(&self) -> bool {
        self.session.is_closed()
    }

    /// Waits for the next backend and hands everything over, if the run may continue. If that
    /// backend dies during the handover, waits for another one.
    pub(super) fn recover(&mut self) -> Result<()> {
        let lost = || Error::Disconnected("running a workload".to_owned());
        let end = Instant::now() + self.reconnect.ok_or_else(lost)?;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            self.client.connect_timeout_ms = left.as_millis() as u64;
            match self.hand_over() {
                Err(Error::Disconnected(_)) if !left.is_zero() => {}
                done => return done,
            }
        }
    }

    fn hand_over(&mut self) -> Result<()> {
        self.session = Session::open(&self.client)?;
        self.start()?;
        self.reconnects += 1;
        Ok(())
    }

    /// Stops all rings; each must be at its driver's position. If a backend dies meanwhile, the
    /// next one is stopped.
    pub(super) fn shut_down(&mut self, lanes: &[Lane]) -> Result<()> {
        loop {
            match self.stop_rings(lanes) {
                Err(Error::Disconnected(_)) if self.reconnect.is_some() => self.recover()?,
                done => return done,
            }
        }
    }

    fn stop_rings(&mut self, lanes: &[Lane]) -> Result<()> {
        for (index, lane) in lanes.iter().enumerate() {
            let (base, avail) = (self.session.stop_ring(index)?, lane.ring.queue.avail_index());
            if base != avail {
                let what = format!("queue {index} stopped at {base}, the driver is at {avail}");
                return Err(Error::Protocol(what));
            }
        }
        Ok(())
    }

    /// Describes the positions of the rings, for the message about a stall.
    pub(super) fn describe_rings(&self) -> String {
        let used = self.shares.iter().map(|share| share.addresses.used_index());
        format!("used indices {:?}", used.collect::<Vec<_>>())
    }

    pub(super) fn reconnects(&self) -> u64 {
        self.reconnects
    }

    /// Hands memory, inflight region and rings over. Rings begin at the used index in memory: zero
    /// at first, and after a crash as QEMU does.
    fn start(&mut self) -> Result<()> {
        let rings = self.shares.iter().map(|share| (share, share.addresses.used_index()));
        let rings: Vec<_> = rings.collect();
        self.session.start_all(&self.client, &self.memory, &mut self.inflight, &rings)
    }
}

/// A workload that suits the device.
struct Plan<'a> {
    options: &'a LoadOptions,
    lane: LaneOptions,
    /// The options of the last queue's lane, if that does something else.
    aside: Option<LaneOptions>,
    queue: QueueOptions,
    /// Blocks in the span.
    blocks: u64,
}

impl<'a> Plan<'a> {
    fn new(options: &'a LoadOptions, agreed: &Negotiated, config: &BlkConfig) -> Result<Self> {
        require(options.client.queues as u64 <= agreed.queues_max, || {
            format!("{} queues, the backend serves {}", options.client.queues, agreed.queues_max)
        })?;
        require(options.workload.mix.is_whole(), || "the mix is not 100 percent".into())?;
        let has_depth = options.iodepth > 0 && options.aside != Some(Aside::Discards(0));
        require(has_depth, || "iodepth is zero".into())?;
        let has_queue = match options.aside {
            Some(Aside::Discards(_)) => options.client.queues > 1,
            _ => true,
        };
        require(has_queue, || "discards aside need a second queue".into())?;
        require(options.aside.is_none() || !options.verify, || {
            "what the last queue does aside is not verified".into()
        })?;
        require(
            options.block_bytes > 0 && options.block_bytes.is_multiple_of(SECTOR_BYTES),
            || format!("requests of {} bytes", options.block_bytes),
        )?;
        require(options.zipf.is_none_or(|exponent| (0.0..=10.0).contains(&exponent)), || {
            "a Zipf exponent that is not between 0 and 10".into()
        })?;
        require(options.burst > 0, || "a burst of no requests".into())?;
        require(options.rate.is_none_or(|rate| (1e-3..=1e9).contains(&rate)), || {
            "a rate that is not between 0.001 and 1e9 requests per second".into()
        })?;
        let blocks = blocks(options, config.capacity_bytes())?;
        let lane = LaneOptions {
            iodepth: options.iodepth,
            commits: None,
            block_bytes: options.block_bytes,
            segment_bytes: segment_bytes(options, agreed, config),
            kinds: kinds(options),
            offset_bytes: options.offset_bytes,
            flush_every: options.flush_every,
            zero_data: options.zero_data,
        };
        let aside = options.aside.as_ref().map(|aside| aside_of(aside, &lane, options));
        let indirect = agreed.has(F_INDIRECT_DESC);
        let mut descriptors = 0;
        for lane in iter::once(&lane).chain(&aside) {
            supports(lane, agreed, config)?;
            descriptors = descriptors.max(lane.descriptors(indirect));
        }
        let size = descriptors.next_power_of_two().max(usize::from(options.client.queue_size));
        require(size <= QUEUE_SIZE_MAX, || format!("a queue of {size} descriptors"))?;
        let event_idx = agreed.has(F_EVENT_IDX);
        let queue = QueueOptions { size: size as u16, event_idx, indirect };
        Ok(Plan { options, lane, aside, queue, blocks })
    }

    fn memory_bytes(&self) -> usize {
        let ring = usize::from(self.queue.size) * 4096 + 64 * 1024;
        let lanes = iter::once(&self.lane).chain(&self.aside);
        let footprint = lanes.map(LaneOptions::footprint).max().unwrap_or_default();
        self.options.client.queues * (ring + footprint)
    }

    fn lanes(&self, memory: &Memory, disk: usize, map: Option<VerifyMap>) -> Result<Vec<Lane>> {
        let mut maps = self.maps(map)?.into_iter();
        let queues = self.options.client.queues as u64;
        (0..queues)
            .map(|index| {
                let ring = Ring::new(memory, self.queue)?;
                let aside = self.options.aside.as_ref().filter(|_| index + 1 == queues);
                let (first, blocks) = self.part(index, queues, aside);
                let seed = self.options.seed.wrapping_mul(0x9e37_79b9).wrapping_add(index);
                let workload = match aside {
                    None | Some(Aside::Commits(_)) => self.options.workload,
                    Some(Aside::Discards(_)) => DISCARDS,
                };
                let source =
                    Source::new(workload, first, blocks, seed).with_zipf(self.options.zipf, seed);
                let lane = self.aside.as_ref().filter(|_| aside.is_some()).unwrap_or(&self.lane);
                let checker = maps.next().map(|map| self.checker(map, first));
                let quota = quota(self.options.limit, index, queues);
                let mut lane = Lane::new(memory, ring, lane.clone(), source, checker, quota)?;
                lane.disk = disk;
                // Lanes of different disks are not synchronised.
                let seed = seed ^ (disk as u64) << 32;
                let rate = self.options.rate.filter(|_| !lane.has_commits());
                lane.pace = rate.map(|it| Pace::new(it, self.options.burst, seed));
                Ok(lane)
            })
            .collect()
    }

    /// Returns the blocks of one queue: a part of its own, or all blocks if queues may overlap.
    fn part(&self, index: u64, queues: u64, aside: Option<&Aside>) -> (u64, u64) {
        if let Some(Aside::Discards(_)) = self.options.aside {
            let half = self.blocks / 2;
            if aside.is_some() { (half, self.blocks - half) } else { (0, half) }
        } else if self.options.verify
            || self.options.parts
            || self.options.workload.order == Order::Sequential
        {
            let first = index * self.blocks / queues;
            (first, (index + 1) * self.blocks / queues - first)
        } else {
            (0, self.blocks)
        }
    }

    fn checker(&self, map: VerifyMap, first: u64) -> Checker {
        Checker::new(map, first, self.options.seed, self.options.discard_zeroes)
    }

    /// Returns one map per queue, or none if nothing is verified.
    fn maps(&self, map: Option<VerifyMap>) -> Result<Vec<VerifyMap>> {
        if !self.options.verify {
            return Ok(Vec::new());
        }
        let (bytes, offset) = (self.options.block_bytes, self.options.offset_bytes);
        let map = map.unwrap_or_else(|| VerifyMap::new(bytes, offset, self.blocks));
        require(map.fits(bytes, offset, self.blocks), || "the map is of another span".into())?;
        Ok(map.split(self.options.client.queues as u64))
    }
}

fn require(condition: bool, message: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::Misuse(message())) }
}

fn blocks(options: &LoadOptions, capacity: u64) -> Result<u64> {
    let room = capacity.saturating_sub(options.offset_bytes);
    let span = if options.span_bytes == 0 { room } else { options.span_bytes };
    require(span <= room, || format!("span of {span} bytes on a disk of {capacity}"))?;
    let blocks = span / options.block_bytes;
    if let Some(Aside::Commits(bytes)) = &options.aside {
        let fits = bytes.start + options.block_bytes <= bytes.end && bytes.end <= capacity;
        require(fits, || format!("commits in bytes {bytes:?} of a disk of {capacity}"))?;
    }
    let needed = options.client.queues as u64 * u64::from(options.iodepth);
    require(blocks >= needed, || format!("{blocks} blocks for {needed} requests in flight"))?;
    Ok(blocks)
}

/// Returns the options of the lane that does what `aside` says, otherwise like the others.
fn aside_of(aside: &Aside, lane: &LaneOptions, options: &LoadOptions) -> LaneOptions {
    let own = LaneOptions { flush_every: 0, ..lane.clone() };
    match aside {
        Aside::Discards(iodepth) => {
            LaneOptions { iodepth: *iodepth, kinds: vec![Kind::Discard], ..own }
        }
        Aside::Commits(bytes) => {
            let of_commits = [Kind::Write, Kind::Flush];
            let is_used = |kind: &Kind| of_commits.contains(kind) || lane.kinds.contains(kind);
            LaneOptions {
                // Beside the others of the only queue, or in one of its own.
                iodepth: if options.client.queues == 1 { options.iodepth } else { 0 },
                commits: Some(bytes.clone()),
                kinds: Kind::ALL.into_iter().filter(is_used).collect(),
                ..own
            }
        }
    }
}

/// Returns the kinds of requests of a workload.
fn kinds(options: &LoadOptions) -> Vec<Kind> {
    let mix = options.workload.mix;
    let wanted = [
        (Kind::Read, mix.read > 0 || options.verify),
        (Kind::Write, mix.write > 0),
        (Kind::Discard, mix.discard > 0),
        (Kind::Zeroes, mix.zeroes > 0),
        (Kind::Flush, options.flush_every > 0),
    ];
    wanted.into_iter().filter(|&(_, wanted)| wanted).map(|(kind, _)| kind).collect()
}

fn segment_bytes(options: &LoadOptions, agreed: &Negotiated, config: &BlkConfig) -> usize {
    let limited = agreed.has(F_SIZE_MAX) && config.size_max > 0;
    let most = if limited { config.size_max as usize } else { usize::MAX };
    options.client.shape.segment_bytes.clamp(1, most)
}

/// Checks that the device supports the workload.
fn supports(lane: &LaneOptions, agreed: &Negotiated, config: &BlkConfig) -> Result<()> {
    let sectors = lane.block_bytes / SECTOR_BYTES;
    for &kind in &lane.kinds {
        let able = match kind {
            Kind::Read => true,
            Kind::Write => !agreed.has(F_RO),
            Kind::Discard => {
                agreed.has(F_DISCARD) && sectors <= u64::from(config.max_discard_sectors)
            }
            Kind::Zeroes => {
                agreed.has(F_WRITE_ZEROES) && sectors <= u64::from(config.max_write_zeroes_sectors)
            }
            Kind::Flush => agreed.has(F_FLUSH),
        };
        require(able, || format!("the device offers no {kind:?} of {sectors} sectors"))?;
        let segments = lane.chain_length(kind) - 2;
        let limited = agreed.has(F_SEG_MAX) && config.seg_max > 0;
        require(!limited || segments <= config.seg_max as usize, || {
            format!("{segments} segments, the device takes {}", config.seg_max)
        })?;
    }
    Ok(())
}

/// Returns the number of requests of one queue.
fn quota(limit: Limit, index: u64, queues: u64) -> u64 {
    match limit {
        Limit::Time { .. } => u64::MAX,
        Limit::Ops(ops) => ops / queues + u64::from(index < ops % queues),
    }
}
