//! All metric families of a scrape. docs/metrics.md has the same list.

use prometheus::proto::MetricType;

/// The metrics of one name.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: MetricType,
    pub help: &'static str,
    /// Names of its labels.
    #[cfg_attr(not(test), expect(dead_code, reason = "for the page"))]
    pub labels: &'static str,
}

const fn counter(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricType::COUNTER, help, labels }
}

const fn gauge(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricType::GAUGE, help, labels }
}

const fn histogram(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricType::HISTOGRAM, help, labels }
}

const fn summary(name: &'static str, labels: &'static str, help: &'static str) -> Family {
    Family { name, kind: MetricType::SUMMARY, help, labels }
}

pub const BUILD_INFO: Family = gauge("flowstone_build_info", "version", "The daemon: always 1");
pub const START: Family =
    gauge("process_start_time_seconds", "", "When the daemon started, since 1970");
pub const CPU: Family = counter("process_cpu_seconds_total", "", "CPU time of the daemon");
pub const RESIDENT: Family = gauge(
    "process_resident_memory_bytes",
    "",
    "Resident memory of the daemon, including guest pages that it has touched",
);
pub const DESCRIPTORS: Family = gauge("process_open_fds", "", "Open files of the daemon");
pub const DESCRIPTORS_MAX: Family = gauge("process_max_fds", "", "Limit of open files");
pub const THREADS: Family = gauge("process_threads", "", "Threads of the daemon");
pub const DISK_INFO: Family = gauge(
    "flowstone_disk_info",
    "disk, image, format, direct, engine, serving, serial, group, vm",
    "A disk: always 1",
);
pub const UP: Family = gauge(
    "flowstone_disk_up",
    "disk",
    "1 if the disk is served, 0 if it is opening, stopping or has failed",
);
pub const CONNECTED: Family =
    gauge("flowstone_disk_connected", "disk", "1 if a monitor is connected");
pub const CONNECTIONS: Family =
    counter("flowstone_disk_connections_total", "disk", "Connections of monitors");
pub const CAPACITY: Family =
    gauge("flowstone_disk_capacity_bytes", "disk", "Size of the disk in the guest");
pub const ALLOCATED: Family = gauge(
    "flowstone_disk_allocated_bytes",
    "disk",
    "Space allocated on the host; up to a minute old, or older if the host does not answer",
);
pub const LIVE: Family =
    gauge("flowstone_disk_live_bytes", "disk", "Space that holds data; as old as allocated");
pub const DEAD: Family = gauge(
    "flowstone_disk_dead_bytes",
    "disk",
    "Space allocated on the host but not used; as old as allocated",
);
pub const RECLAIMED: Family =
    counter("flowstone_disk_reclaimed_bytes_total", "disk", "Space given back to the host");
pub const REQUESTS: Family = counter("flowstone_requests_total", "disk, op", "Completed requests");
pub const BYTES: Family =
    counter("flowstone_request_bytes_total", "disk, op", "Bytes of completed requests");
pub const ERRORS: Family = counter("flowstone_request_errors_total", "disk, op", "Failed requests");
pub const ERRNO: Family =
    counter("flowstone_errors_total", "disk, errno", "Failed requests, by error number");
pub const IN_FLIGHT: Family =
    gauge("flowstone_requests_in_flight", "disk", "Requests taken from rings and not completed");
pub const DURATION: Family = histogram(
    "flowstone_request_duration_seconds",
    "disk, op",
    "Latency from submission to completion, for each range of a request separately",
);
pub const STAGE: Family = summary(
    "flowstone_stage_duration_seconds",
    "disk, stage",
    "Time of batches in a stage: front (from the ring to the other thread), submit, publish",
);
pub const THROTTLED: Family =
    counter("flowstone_throttled_requests_total", "disk", "Requests that had to wait for a limit");
pub const THROTTLED_TIME: Family = counter(
    "flowstone_throttled_seconds_total",
    "disk",
    "Total time that requests waited for a limit",
);
pub const HELD_BACK: Family = counter(
    "flowstone_held_back_requests_total",
    "disk",
    "Requests to files that waited for other disks",
);
pub const HELD_BACK_TIME: Family = counter(
    "flowstone_held_back_seconds_total",
    "disk",
    "Total time that requests to files waited for other disks",
);
pub const POLLING: Family =
    counter("flowstone_polling_seconds_total", "disk", "Time that queues polled for work");
pub const SLEEPING: Family =
    counter("flowstone_sleeping_seconds_total", "disk", "Time that queues slept");
pub const KICKS: Family = counter("flowstone_kicks_total", "disk", "Notifications from guests");
pub const CALLS: Family = counter("flowstone_calls_total", "disk", "Interrupts to guests");
pub const DISCARDED_RANGES: Family =
    counter("flowstone_discard_ranges_total", "disk", "Ranges that guests have discarded");
pub const DISCARDED: Family =
    counter("flowstone_discard_bytes_total", "disk", "Bytes of discarded ranges");
pub const PUNCHES: Family =
    counter("flowstone_discard_punches_total", "disk", "Calls that gave space back to the host");
pub const PUNCHED: Family =
    counter("flowstone_discard_punched_bytes_total", "disk", "Bytes of the ranges of these calls");
pub const SEGMENTS: Family = gauge(
    "flowstone_log_segments",
    "disk, state",
    "Segments of a log image: used, ready, dead (free after the next checkpoint), limit",
);
pub const BLOCKS: Family = counter(
    "flowstone_log_appended_blocks_total",
    "disk, kind",
    "Blocks written to a log image since it was made: guest, copy, map, other",
);
pub const CLEANING: Family =
    counter("flowstone_log_cleaning_seconds_total", "disk", "Time of cleaning, without its pauses");
pub const FULL: Family = gauge("flowstone_log_full", "disk", "1 if a log image refuses writes");
pub const HITS: Family = counter(
    "flowstone_cache_hit_blocks_total",
    "disk, class",
    "Blocks of 4 KiB read from the cache",
);
pub const MISSES: Family = counter(
    "flowstone_cache_miss_blocks_total",
    "disk, class",
    "Blocks of 4 KiB read from the image below the cache",
);
pub const CACHE_TARGET: Family =
    gauge("flowstone_cache_target_bytes", "", "Bytes that the cache may hold now");
pub const DAMAGE: Family =
    counter("flowstone_damage_total", "disk", "Times that a request or maintenance found damage");

/// All families, in the order of a scrape.
pub const ALL: [&Family; 43] = [
    &BUILD_INFO,
    &START,
    &CPU,
    &RESIDENT,
    &DESCRIPTORS,
    &DESCRIPTORS_MAX,
    &THREADS,
    &DISK_INFO,
    &UP,
    &CONNECTED,
    &CONNECTIONS,
    &CAPACITY,
    &ALLOCATED,
    &LIVE,
    &DEAD,
    &RECLAIMED,
    &REQUESTS,
    &BYTES,
    &ERRORS,
    &ERRNO,
    &IN_FLIGHT,
    &DURATION,
    &STAGE,
    &THROTTLED,
    &THROTTLED_TIME,
    &HELD_BACK,
    &HELD_BACK_TIME,
    &POLLING,
    &SLEEPING,
    &KICKS,
    &CALLS,
    &DISCARDED_RANGES,
    &DISCARDED,
    &PUNCHES,
    &PUNCHED,
    &SEGMENTS,
    &BLOCKS,
    &CLEANING,
    &FULL,
    &HITS,
    &MISSES,
    &CACHE_TARGET,
    &DAMAGE,
];
