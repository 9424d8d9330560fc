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

use MetricType::{COUNTER, GAUGE, HISTOGRAM, SUMMARY};

pub const BUILD_INFO: Family = Family {
    name: "flowstone_build_info",
    kind: GAUGE,
    help: "The daemon: always 1",
    labels: "version",
};
pub const START: Family = Family {
    name: "process_start_time_seconds",
    kind: GAUGE,
    help: "When the daemon started, since 1970",
    labels: "",
};
pub const CPU: Family = Family {
    name: "process_cpu_seconds_total",
    kind: COUNTER,
    help: "CPU time of the daemon",
    labels: "",
};
pub const RESIDENT: Family = Family {
    name: "process_resident_memory_bytes",
    kind: GAUGE,
    help: "Resident memory of the daemon, including guest pages that it has touched",
    labels: "",
};
pub const DESCRIPTORS: Family =
    Family { name: "process_open_fds", kind: GAUGE, help: "Open files of the daemon", labels: "" };
pub const DESCRIPTORS_MAX: Family =
    Family { name: "process_max_fds", kind: GAUGE, help: "Limit of open files", labels: "" };
pub const THREADS: Family =
    Family { name: "process_threads", kind: GAUGE, help: "Threads of the daemon", labels: "" };
pub const DISK_INFO: Family = Family {
    name: "flowstone_disk_info",
    kind: GAUGE,
    help: "A disk: always 1",
    labels: "disk, image, format, direct, engine, serving, serial, group, vm",
};
pub const UP: Family = Family {
    name: "flowstone_disk_up",
    kind: GAUGE,
    help: "1 if the disk is served, 0 if it is opening, stopping or has failed",
    labels: "disk",
};
pub const CONNECTED: Family = Family {
    name: "flowstone_disk_connected",
    kind: GAUGE,
    help: "1 if a monitor is connected",
    labels: "disk",
};
pub const CONNECTIONS: Family = Family {
    name: "flowstone_disk_connections_total",
    kind: COUNTER,
    help: "Connections of monitors",
    labels: "disk",
};
pub const CAPACITY: Family = Family {
    name: "flowstone_disk_capacity_bytes",
    kind: GAUGE,
    help: "Size of the disk in the guest",
    labels: "disk",
};
pub const ALLOCATED: Family = Family {
    name: "flowstone_disk_allocated_bytes",
    kind: GAUGE,
    help: "Space allocated on the host; up to a minute old, or older if the host does not answer",
    labels: "disk",
};
pub const LIVE: Family = Family {
    name: "flowstone_disk_live_bytes",
    kind: GAUGE,
    help: "Space that holds data; as old as allocated",
    labels: "disk",
};
pub const DEAD: Family = Family {
    name: "flowstone_disk_dead_bytes",
    kind: GAUGE,
    help: "Space allocated on the host but not used; as old as allocated",
    labels: "disk",
};
pub const RECLAIMED: Family = Family {
    name: "flowstone_disk_reclaimed_bytes_total",
    kind: COUNTER,
    help: "Space given back to the host",
    labels: "disk",
};
pub const REQUESTS: Family = Family {
    name: "flowstone_requests_total",
    kind: COUNTER,
    help: "Completed requests",
    labels: "disk, op",
};
pub const BYTES: Family = Family {
    name: "flowstone_request_bytes_total",
    kind: COUNTER,
    help: "Bytes of completed requests",
    labels: "disk, op",
};
pub const ERRORS: Family = Family {
    name: "flowstone_request_errors_total",
    kind: COUNTER,
    help: "Failed requests",
    labels: "disk, op",
};
pub const ERRNO: Family = Family {
    name: "flowstone_errors_total",
    kind: COUNTER,
    help: "Failed requests, by error number",
    labels: "disk, errno",
};
pub const IN_FLIGHT: Family = Family {
    name: "flowstone_requests_in_flight",
    kind: GAUGE,
    help: "Requests taken from rings and not completed",
    labels: "disk",
};
pub const DURATION: Family = Family {
    name: "flowstone_request_duration_seconds",
    kind: HISTOGRAM,
    help: "Latency from submission to completion, for each range of a request separately",
    labels: "disk, op",
};
pub const STAGE: Family = Family {
    name: "flowstone_stage_duration_seconds",
    kind: SUMMARY,
    help: "Time of batches in a stage: front (from the ring to the other thread), submit, publish",
    labels: "disk, stage",
};
pub const THROTTLED: Family = Family {
    name: "flowstone_throttled_requests_total",
    kind: COUNTER,
    help: "Requests that had to wait for a limit",
    labels: "disk",
};
pub const THROTTLED_TIME: Family = Family {
    name: "flowstone_throttled_seconds_total",
    kind: COUNTER,
    help: "Total time that requests waited for a limit",
    labels: "disk",
};
pub const HELD_BACK: Family = Family {
    name: "flowstone_held_back_requests_total",
    kind: COUNTER,
    help: "Requests to files that waited for other disks",
    labels: "disk",
};
pub const HELD_BACK_TIME: Family = Family {
    name: "flowstone_held_back_seconds_total",
    kind: COUNTER,
    help: "Total time that requests to files waited for other disks",
    labels: "disk",
};
pub const POLLING: Family = Family {
    name: "flowstone_polling_seconds_total",
    kind: COUNTER,
    help: "Time that queues polled for work",
    labels: "disk",
};
pub const SLEEPING: Family = Family {
    name: "flowstone_sleeping_seconds_total",
    kind: COUNTER,
    help: "Time that queues slept",
    labels: "disk",
};
pub const KICKS: Family = Family {
    name: "flowstone_kicks_total",
    kind: COUNTER,
    help: "Notifications from guests",
    labels: "disk",
};
pub const CALLS: Family = Family {
    name: "flowstone_calls_total",
    kind: COUNTER,
    help: "Interrupts to guests",
    labels: "disk",
};
pub const DISCARDED_RANGES: Family = Family {
    name: "flowstone_discard_ranges_total",
    kind: COUNTER,
    help: "Ranges that guests have discarded",
    labels: "disk",
};
pub const DISCARDED: Family = Family {
    name: "flowstone_discard_bytes_total",
    kind: COUNTER,
    help: "Bytes of discarded ranges",
    labels: "disk",
};
pub const PUNCHES: Family = Family {
    name: "flowstone_discard_punches_total",
    kind: COUNTER,
    help: "Calls that gave space back to the host",
    labels: "disk",
};
pub const PUNCHED: Family = Family {
    name: "flowstone_discard_punched_bytes_total",
    kind: COUNTER,
    help: "Bytes of the ranges of these calls",
    labels: "disk",
};
pub const SEGMENTS: Family = Family {
    name: "flowstone_log_segments",
    kind: GAUGE,
    help: "Segments of a log image: used, ready, dead (free after the next checkpoint), limit",
    labels: "disk, state",
};
pub const BLOCKS: Family = Family {
    name: "flowstone_log_appended_blocks_total",
    kind: COUNTER,
    help: "Blocks written to a log image since it was made: guest, copy, map, other",
    labels: "disk, kind",
};
pub const CLEANING: Family = Family {
    name: "flowstone_log_cleaning_seconds_total",
    kind: COUNTER,
    help: "Time of cleaning, without its pauses",
    labels: "disk",
};
pub const FULL: Family = Family {
    name: "flowstone_log_full",
    kind: GAUGE,
    help: "1 if a log image refuses writes",
    labels: "disk",
};
pub const HITS: Family = Family {
    name: "flowstone_cache_hit_blocks_total",
    kind: COUNTER,
    help: "Blocks of 4 KiB read from the cache",
    labels: "disk, class",
};
pub const MISSES: Family = Family {
    name: "flowstone_cache_miss_blocks_total",
    kind: COUNTER,
    help: "Blocks of 4 KiB read from the image below the cache",
    labels: "disk, class",
};
pub const CACHE_TARGET: Family = Family {
    name: "flowstone_cache_target_bytes",
    kind: GAUGE,
    help: "Bytes that the cache may hold now",
    labels: "",
};
pub const DAMAGE: Family = Family {
    name: "flowstone_damage_total",
    kind: COUNTER,
    help: "Times that a request or maintenance found damage",
    labels: "disk",
};

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
