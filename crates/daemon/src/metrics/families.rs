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

/// Makes a constant of each family, and `ALL` of them, in the order of a scrape.
macro_rules! families {
    ($($id:ident: $kind:ident($name:expr, $labels:expr, $help:expr $(,)?);)*) => {
        $(pub const $id: Family =
            Family { name: $name, kind: MetricType::$kind, help: $help, labels: $labels };)*

        pub const ALL: &[&Family] = &[$(&$id),*];
    };
}

families! {
    BUILD_INFO: GAUGE("flowstone_build_info", "version", "The daemon: always 1");
    START: GAUGE("process_start_time_seconds", "", "When the daemon started, since 1970");
    CPU: COUNTER("process_cpu_seconds_total", "", "CPU time of the daemon");
    RESIDENT: GAUGE(
        "process_resident_memory_bytes",
        "",
        "Resident memory of the daemon, including guest pages that it has touched",
    );
    DESCRIPTORS: GAUGE("process_open_fds", "", "Open files of the daemon");
    DESCRIPTORS_MAX: GAUGE("process_max_fds", "", "Limit of open files");
    THREADS: GAUGE("process_threads", "", "Threads of the daemon");
    DISK_INFO: GAUGE(
        "flowstone_disk_info",
        "disk, image, format, direct, engine, serving, serial, group, vm",
        "A disk: always 1",
    );
    UP: GAUGE(
        "flowstone_disk_up",
        "disk",
        "1 if the disk is served, 0 if it is opening, stopping or has failed",
    );
    CONNECTED: GAUGE("flowstone_disk_connected", "disk", "1 if a monitor is connected");
    CONNECTIONS: COUNTER("flowstone_disk_connections_total", "disk", "Connections of monitors");
    CAPACITY: GAUGE("flowstone_disk_capacity_bytes", "disk", "Size of the disk in the guest");
    ALLOCATED: GAUGE(
        "flowstone_disk_allocated_bytes",
        "disk",
        "Space allocated on the host; up to a minute old, or older if the host does not answer",
    );
    LIVE: GAUGE("flowstone_disk_live_bytes", "disk", "Space that holds data; as old as allocated");
    DEAD: GAUGE(
        "flowstone_disk_dead_bytes",
        "disk",
        "Space allocated on the host but not used; as old as allocated",
    );
    RECLAIMED:
        COUNTER("flowstone_disk_reclaimed_bytes_total", "disk", "Space given back to the host");
    REQUESTS: COUNTER("flowstone_requests_total", "disk, op", "Completed requests");
    BYTES: COUNTER("flowstone_request_bytes_total", "disk, op", "Bytes of completed requests");
    ERRORS: COUNTER("flowstone_request_errors_total", "disk, op", "Failed requests");
    ERRNO: COUNTER("flowstone_errors_total", "disk, errno", "Failed requests, by error number");
    IN_FLIGHT: GAUGE(
        "flowstone_requests_in_flight",
        "disk",
        "Requests taken from rings and not completed",
    );
    DURATION: HISTOGRAM(
        "flowstone_request_duration_seconds",
        "disk, op",
        "Latency from submission to completion, for each range of a request separately",
    );
    STAGE: SUMMARY(
        "flowstone_stage_duration_seconds",
        "disk, stage",
        "Time of batches in a stage: front (from the ring to the other thread), submit, publish",
    );
    THROTTLED: COUNTER(
        "flowstone_throttled_requests_total",
        "disk",
        "Requests that had to wait for a limit",
    );
    THROTTLED_TIME: COUNTER(
        "flowstone_throttled_seconds_total",
        "disk",
        "Total time that requests waited for a limit",
    );
    HELD_BACK: COUNTER(
        "flowstone_held_back_requests_total",
        "disk",
        "Requests to files that waited for other disks",
    );
    HELD_BACK_TIME: COUNTER(
        "flowstone_held_back_seconds_total",
        "disk",
        "Total time that requests to files waited for other disks",
    );
    POLLING: COUNTER("flowstone_polling_seconds_total", "disk", "Time that queues polled for work");
    SLEEPING: COUNTER("flowstone_sleeping_seconds_total", "disk", "Time that queues slept");
    KICKS: COUNTER("flowstone_kicks_total", "disk", "Notifications from guests");
    CALLS: COUNTER("flowstone_calls_total", "disk", "Interrupts to guests");
    DISCARDED_RANGES:
        COUNTER("flowstone_discard_ranges_total", "disk", "Ranges that guests have discarded");
    DISCARDED: COUNTER("flowstone_discard_bytes_total", "disk", "Bytes of discarded ranges");
    PUNCHES: COUNTER(
        "flowstone_discard_punches_total",
        "disk",
        "Calls that gave space back to the host",
    );
    PUNCHED: COUNTER(
        "flowstone_discard_punched_bytes_total",
        "disk",
        "Bytes of the ranges of these calls",
    );
    SEGMENTS: GAUGE(
        "flowstone_log_segments",
        "disk, state",
        "Segments of a log image: used, ready, dead (free after the next checkpoint), limit",
    );
    BLOCKS: COUNTER(
        "flowstone_log_appended_blocks_total",
        "disk, kind",
        "Blocks written to a log image since it was made: guest, copy, map, other",
    );
    CLEANING: COUNTER(
        "flowstone_log_cleaning_seconds_total",
        "disk",
        "Time of cleaning, without its pauses",
    );
    FULL: GAUGE("flowstone_log_full", "disk", "1 if a log image refuses writes");
    HITS: COUNTER(
        "flowstone_cache_hit_blocks_total",
        "disk, class",
        "Blocks of 4 KiB read from the cache",
    );
    MISSES: COUNTER(
        "flowstone_cache_miss_blocks_total",
        "disk, class",
        "Blocks of 4 KiB read from the image below the cache",
    );
    CACHE_TARGET: GAUGE("flowstone_cache_target_bytes", "", "Bytes that the cache may hold now");
    DAMAGE: COUNTER(
        "flowstone_damage_total",
        "disk",
        "Times that a request or maintenance found damage",
    );
}
