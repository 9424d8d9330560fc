//! Metrics of disks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flowstone_block::OpKind;
use flowstone_image::{Image, LogState};
use flowstone_runner::{Histogram, QueueCounters, Snapshot};

use super::Families;
use super::families as of;
use super::families::Family;
use crate::cache_report::blocks_read;
use crate::disk::Disk;
use crate::disks::Disks;
use crate::image_probe::Told;

/// Selects one of a queue's histograms.
type Choice<'a> = dyn Fn(&QueueCounters) -> &Histogram + 'a;

/// Age of the host's answers after which they are queried again.
const TOLD_AGE: Duration = Duration::from_secs(60);

pub fn collect(disks: &Disks, families: &mut Families) {
    for (name, is_served) in disks.names() {
        families.add(&of::UP, &[("disk", &name)], f64::from(u8::from(is_served)));
    }
    for disk in disks.serving() {
        let mut figures = Figures { name: &disk.name, families };
        figures.device(&disk);
        figures.requests(&disk);
        figures.waits(&disk);
        figures.cache(&disk);
        if let Some(image) = disk.stack.image.as_deref() {
            figures.image(image);
        }
        if let Some(probe) = &disk.probe {
            figures.told(probe.last(TOLD_AGE));
        }
    }
}

/// Collects the metrics of one disk.
struct Figures<'all> {
    name: &'all str,
    families: &'all mut Families,
}

impl Figures<'_> {
    fn add(&mut self, family: &Family, value: f64) {
        self.families.add(family, &[("disk", self.name)], value);
    }

    fn add_by(&mut self, family: &Family, label: &str, which: &str, value: f64) {
        self.families.add(family, &[("disk", self.name), (label, which)], value);
    }

    fn device(&mut self, disk: &Disk) {
        let image = disk.image_path.as_ref().map(|path| path.display().to_string());
        let format = disk.stack.image.as_ref().map(|image| image.format().to_string());
        let file = disk.stack.image.as_ref().map(|image| image.file());
        let direct = file.map(|file| file.is_direct().to_string());
        let engine = file.and_then(|file| file.engine()).map(|engine| engine.name());
        let serving = disk.stack.image.as_ref().map(|image| image.serving());
        let labels = [
            ("disk", self.name),
            ("image", image.as_deref().unwrap_or_default()),
            ("format", format.as_deref().unwrap_or_default()),
            ("direct", direct.as_deref().unwrap_or_default()),
            ("engine", engine.unwrap_or_default()),
            ("serving", serving.as_deref().unwrap_or_default()),
            ("serial", &disk.serial),
            ("group", disk.stack.limits.group().unwrap_or_default()),
            ("vm", &disk.vm_name()),
        ];
        self.families.add(&of::DISK_INFO, &labels, 1.0);
        let device = &disk.shared;
        self.add(&of::CONNECTED, f64::from(u8::from(device.is_connected())));
        self.add(&of::CONNECTIONS, device.connections() as f64);
        self.add(&of::CAPACITY, device.capacity().bytes() as f64);
    }

    fn requests(&mut self, disk: &Disk) {
        let queues = disk.queues.all();
        let sum = |counter: &dyn Fn(&QueueCounters) -> &AtomicU64| -> f64 {
            let values = queues.iter().map(|(_, queue)| counter(queue).load(Ordering::Relaxed));
            values.sum::<u64>() as f64
        };
        let times = |histogram: &Choice<'_>| {
            let mut all = Snapshot::default();
            queues.iter().for_each(|(_, queue)| all.merge(&histogram(queue).snapshot()));
            all
        };
        for kind in OpKind::ALL {
            let (index, op) = (kind as usize, kind.name());
            let requests = sum(&|queue| &queue.requests[index]);
            if requests > 0.0 {
                self.add_by(&of::REQUESTS, "op", op, requests);
                self.add_by(&of::BYTES, "op", op, sum(&|queue| &queue.bytes[index]));
                self.add_by(&of::ERRORS, "op", op, sum(&|queue| &queue.errors[index]));
                let (labels, times) =
                    ([("disk", self.name), ("op", op)], times(&|q| &q.device[index]));
                self.families.histogram(&of::DURATION, &labels, &times);
            }
        }
        let stages: [(_, &Choice<'_>); 3] = [
            ("front", &|queue| &queue.front),
            ("submit", &|queue| &queue.submit),
            ("publish", &|queue| &queue.publish),
        ];
        for (stage, histogram) in stages {
            let times = times(histogram);
            if times.count() > 0 {
                let labels = [("disk", self.name), ("stage", stage)];
                self.families.summary(&of::STAGE, &labels, &times);
            }
        }
        self.add(&of::IN_FLIGHT, sum(&|queue| &queue.in_flight));
        let spinning = sum(&|queue| &queue.spin_ns) + sum(&|queue| &queue.front_spin_ns);
        self.add(&of::POLLING, spinning / 1e9);
        self.add(&of::SLEEPING, sum(&|queue| &queue.sleep_ns) / 1e9);
        self.add(&of::KICKS, sum(&|queue| &queue.kicks));
        self.add(&of::CALLS, sum(&|queue| &queue.calls));
        for (errno, count) in disk.queues.failures.counts() {
            self.add_by(&of::ERRNO, "errno", &errno.to_string(), count as f64);
        }
    }

    fn waits(&mut self, disk: &Disk) {
        let (throttled, time) = disk.stack.limits.throttled();
        self.add(&of::THROTTLED, throttled as f64);
        self.add(&of::THROTTLED_TIME, time.as_secs_f64());
        let (held_back, time) = disk.stack.share.held_back();
        self.add(&of::HELD_BACK, held_back as f64);
        self.add(&of::HELD_BACK_TIME, time.as_secs_f64());
    }

    fn cache(&mut self, disk: &Disk) {
        let Some(cached) = disk.stack.cached.as_deref() else { return };
        for (class, hits, misses) in blocks_read(cached) {
            self.add_by(&of::HITS, "class", class, hits as f64);
            self.add_by(&of::MISSES, "class", class, misses as f64);
        }
    }

    fn image(&mut self, image: &dyn Image) {
        let discards = image.discards();
        for (family, value) in [
            (&of::DISCARDED_RANGES, discards.ranges),
            (&of::DISCARDED, discards.bytes),
            (&of::PUNCHES, discards.punches),
            (&of::PUNCHED, discards.punched_bytes),
            (&of::RECLAIMED, discards.reclaimed_bytes),
            (&of::DAMAGE, image.damages().met),
        ] {
            self.add(family, value as f64);
        }
    }

    /// Adds figures known only to the image's host, or counted under a lock of the image.
    fn told(&mut self, told: Told) {
        if let Some(space) = told.space {
            self.add(&of::ALLOCATED, space.allocated_bytes as f64);
            for (family, bytes) in [(&of::LIVE, space.live_bytes), (&of::DEAD, space.dead_bytes)] {
                if let Some(bytes) = bytes {
                    self.add(family, bytes as f64);
                }
            }
        }
        if let Some(log) = told.log {
            self.log(&log);
        }
    }

    fn log(&mut self, log: &LogState) {
        for (state, segments) in [
            ("limit", log.segments_limit),
            ("used", log.segments_used),
            ("ready", log.segments_ready),
            ("dead", log.segments_dead),
        ] {
            self.add_by(&of::SEGMENTS, "state", state, f64::from(segments));
        }
        let known = log.guest_blocks + log.relocated_blocks + log.map_blocks;
        for (kind, blocks) in [
            ("guest", log.guest_blocks),
            ("copy", log.relocated_blocks),
            ("map", log.map_blocks),
            ("other", log.appended_blocks.saturating_sub(known)),
        ] {
            self.add_by(&of::BLOCKS, "kind", kind, blocks as f64);
        }
        self.add(&of::CLEANING, log.costs.cleaning_seconds);
        self.add(&of::FULL, f64::from(u8::from(log.full)));
    }
}
