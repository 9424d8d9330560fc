//! The output of `stats --json`. Its format is stable and documented in docs/operating.md.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flowstone_block::OpKind;
use flowstone_resources::Heard;
use flowstone_runner::{FailureReport, Histogram, PollerReport, QueueCounters, Snapshot};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::cache_report::CacheReport;
use crate::disk::Disk;
use crate::disks::{Disks, Failed};
use crate::image_probe::{ImageProbe, PATIENCE};
use crate::image_report::{DamageReport, DiscardReport, SpaceReport};
use crate::memory_charge::MemoryReport;
use crate::vm_report::VmReport;
use crate::vms;

/// The report of the daemon.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    pid: u32,
    uptime_s: f64,
    /// Names of disks that are being opened.
    opening: Vec<String>,
    /// Disks that could not be opened.
    failed: Vec<Failed>,
    /// Absent without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache: Option<CacheReport>,
    memory: MemoryReport,
    vms: Vec<VmReport>,
    pollers: Vec<PollerReport>,
    groups: Value,
    disks: Vec<DiskReport>,
}

#[derive(Serialize)]
struct DiskReport {
    name: String,
    serial: String,
    image: Option<String>,
    socket: String,
    serving: String,
    /// Absent without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
    /// Whether the file is accessed with direct I/O; absent without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    direct: Option<bool>,
    /// I/O engine of the file; absent without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    engine: Option<&'static str>,
    connected: bool,
    /// The VM that uses it, as named or as last seen; `null` if neither is known.
    vm: Option<String>,
    connections: u64,
    /// Features negotiated with the guest; empty without a guest.
    features: Vec<&'static str>,
    in_flight: u64,
    capacity_bytes: u64,
    /// Space allocated on the host; `null` if unknown or without an image.
    allocated_bytes: Option<u64>,
    /// Absent if unknown or without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    space: Option<SpaceReport>,
    /// Age of `allocated_bytes`, `space` and `log`, if the host has not answered in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    stale_s: Option<f64>,
    write_through: bool,
    readonly: bool,
    /// Log images only.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<Value>,
    /// Counters of the stages above the image.
    #[serde(flatten)]
    stages: Map<String, Value>,
    /// Discard counters; absent without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    discards: Option<DiscardReport>,
    /// Damage met while the disk is served; absent without an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    damage: Option<DamageReport>,
    /// Failed requests by errno.
    errors_by_errno: Vec<FailureReport>,
    total: QueueReport,
    queues: Vec<QueueReport>,
}

#[derive(Serialize)]
struct QueueReport {
    /// Queue number; absent in totals.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    requests: ByKind<u64>,
    bytes: ByKind<u64>,
    errors: ByKind<u64>,
    /// `fused` or `split`, the current form; absent in totals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pipeline: Option<&'static str>,
    /// Changes of the form while the queue ran.
    pipeline_changes: u64,
    answered: u64,
    kicks: u64,
    calls: u64,
    kicks_per_request: f64,
    calls_per_request: f64,
    sleeps: u64,
    sleep_s: f64,
    spin_s: f64,
    device_us: ByKind<Latency>,
    submit_us: Latency,
    publish_us: Latency,
    /// Of split queues: time from finding chains to having handed them over.
    front_us: Latency,
    /// Of split queues: sleeps of the front thread.
    front_sleeps: u64,
    /// Of split queues: polling time of the front thread.
    front_spin_s: f64,
}

/// One value for each kind of operation, by its name.
type ByKind<T> = BTreeMap<&'static str, T>;

#[derive(Serialize)]
struct Latency {
    count: u64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
    /// If requested: upper bound and count of each bucket that is not empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    buckets: Option<Vec<(f64, u64)>>,
}

fn by_kind<T>(mut value: impl FnMut(OpKind) -> T) -> ByKind<T> {
    OpKind::ALL.map(|kind| (kind.name(), value(kind))).into()
}

impl Report {
    /// Reads the counters of all disks.
    pub fn of(
        disks: &Disks,
        cache: Option<CacheReport>,
        heard: &[Heard],
        pollers: Vec<PollerReport>,
        groups: Value,
        (uptime, buckets): (Duration, bool),
    ) -> Self {
        let serving = disks.serving();
        let attached = vms::attached(&serving);
        serving.iter().filter_map(|disk| disk.probe.as_ref()).for_each(ImageProbe::begin);
        let deadline = Instant::now() + PATIENCE;
        Self {
            opening: disks.opening(),
            failed: disks.failed(),
            cache,
            memory: MemoryReport::of(vms::guest_bytes(&attached)),
            vms: VmReport::of_all(&serving, heard),
            pollers,
            groups,
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_s: uptime.as_secs_f64(),
            disks: serving.iter().map(|disk| DiskReport::of(disk, deadline, buckets)).collect(),
        }
    }
}

impl DiskReport {
    fn of(disk: &Disk, deadline: Instant, buckets: bool) -> Self {
        let queues = disk.queues.all();
        let all: Vec<&QueueCounters> = queues.iter().map(|(_, counters)| &**counters).collect();
        let image = disk.stack.image.as_deref();
        let known = disk.probe.as_ref().map(|probe| probe.known(deadline));
        let (told, stale) = known.map(|it| (it.told, it.stale)).unwrap_or_default();
        let told = told.unwrap_or_default();
        let space = told.space.zip(image).map(|(space, image)| SpaceReport::of(space, image));
        let total = QueueReport::of(None, &all, buckets);
        Self {
            name: disk.name.clone(),
            serial: disk.serial.clone(),
            image: disk.image_path.as_ref().map(|path| path.display().to_string()),
            socket: disk.socket.display().to_string(),
            serving: image.map_or_else(|| "no image".into(), |image| image.serving()),
            format: image.map(|image| image.format().to_string()),
            direct: image.map(|image| image.file().is_direct()),
            engine: image.and_then(|image| image.file().engine()).map(|it| it.name()),
            connected: disk.shared.is_connected(),
            vm: Some(disk.vm_name()).filter(|name| !name.is_empty()),
            connections: disk.shared.connections(),
            features: disk.shared.features(),
            in_flight: all.iter().map(|queue| queue.in_flight.load(Ordering::Relaxed)).sum(),
            capacity_bytes: disk.shared.capacity().bytes(),
            allocated_bytes: space.as_ref().map(|it| it.space.allocated_bytes),
            space,
            stale_s: stale.map(|age| age.as_secs_f64()),
            write_through: disk.shared.write_through(),
            readonly: disk.stack.top.geometry().readonly,
            log: told.own.map(|own| own.json.clone()),
            stages: disk.stack.figures(),
            discards: image.map(|image| {
                DiscardReport::of(total.requests[OpKind::Discard.name()], image.discards())
            }),
            damage: image.map(|image| DamageReport::from(image.damages())),
            errors_by_errno: disk.queues.failures.report(),
            total,
            queues: queues
                .iter()
                .map(|(index, counters)| QueueReport::of(Some(*index), &[counters], buckets))
                .collect(),
        }
    }
}

impl QueueReport {
    fn of(index: Option<usize>, queues: &[&QueueCounters], buckets: bool) -> Self {
        let sum = |counter: &dyn Fn(&QueueCounters) -> &AtomicU64| -> u64 {
            queues.iter().map(|queue| counter(queue).load(Ordering::Relaxed)).sum()
        };
        let requests = by_kind(|kind| sum(&|queue| &queue.requests[kind as usize]));
        let total: u64 = requests.values().sum();
        let (kicks, calls) = (sum(&|queue| &queue.kicks), sum(&|queue| &queue.calls));
        let per_request = |count: u64| count as f64 / total.max(1) as f64;
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let times = |histogram: &dyn Fn(&QueueCounters) -> &Histogram| {
            Latency::of(queues.iter().map(|queue| histogram(queue).snapshot()), buckets)
        };
        let is_split = queues.iter().any(|queue| queue.is_split.load(Ordering::Relaxed));
        Self {
            index,
            requests,
            bytes: by_kind(|kind| sum(&|queue| &queue.bytes[kind as usize])),
            errors: by_kind(|kind| sum(&|queue| &queue.errors[kind as usize])),
            pipeline: index.map(|_| if is_split { "split" } else { "fused" }),
            pipeline_changes: sum(&|queue| &queue.form_changes),
            answered: sum(&|queue| &queue.answered),
            kicks,
            calls,
            kicks_per_request: per_request(kicks),
            calls_per_request: per_request(calls),
            sleeps: sum(&|queue| &queue.sleeps),
            sleep_s: seconds(sum(&|queue| &queue.sleep_ns)),
            spin_s: seconds(sum(&|queue| &queue.spin_ns)),
            device_us: by_kind(|kind| times(&|queue| &queue.device[kind as usize])),
            submit_us: times(&|queue| &queue.submit),
            publish_us: times(&|queue| &queue.publish),
            front_us: times(&|queue| &queue.front),
            front_sleeps: sum(&|queue| &queue.front_sleeps),
            front_spin_s: seconds(sum(&|queue| &queue.front_spin_ns)),
        }
    }
}

impl Latency {
    fn of(parts: impl Iterator<Item = Snapshot>, buckets: bool) -> Self {
        let mut all = Snapshot::default();
        parts.for_each(|part| all.merge(&part));
        Self {
            count: all.count(),
            mean: all.mean_us(),
            p50: all.percentile_us(0.5),
            p90: all.percentile_us(0.9),
            p99: all.percentile_us(0.99),
            p999: all.percentile_us(0.999),
            max: all.percentile_us(1.0),
            buckets: buckets.then(|| all.buckets_us()),
        }
    }
}
