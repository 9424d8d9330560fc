//! Metrics of disks.

use std::sync::Arc;
use std::time::Duration;

use flowstone_block::{Family, Metric, MetricKind};
use flowstone_image::Space;
use flowstone_runner::{Failures, QueueCounters};

use crate::disk::Disk;
use crate::disks::Disks;
use crate::families::Families;
use crate::front_end::Device;
use crate::stack::Stack;

/// Age of the host's answers after which they are queried again.
const TOLD_AGE: Duration = Duration::from_secs(60);

/// Whether a disk is served.
const UP: &[Metric<bool>] = &[Metric::gauge(
    "flowstone_disk_up",
    "1 if the disk is served, 0 if it is opening, stopping or has failed",
    |is_served| f64::from(u8::from(*is_served)),
)];

const INFO: Family = Family {
    name: "flowstone_disk_info",
    kind: MetricKind::Gauge,
    labels: "image, format, direct, engine, serving, serial, group, vm",
    help: "A disk: always 1",
};

pub fn collect(disks: &Disks, families: &mut Families) {
    // The order of the page, also for what not every disk has.
    families.set_disk(Some(""));
    families.list(&INFO);
    families.read(UP, None);
    read(None, families);
    for (name, is_served) in disks.names() {
        families.set_disk(Some(&name));
        families.read(UP, Some(&is_served));
    }
    for disk in disks.serving() {
        families.set_disk(Some(&disk.name));
        info(&disk, families);
        read(Some(&disk), families);
    }
}

fn info(disk: &Disk, families: &mut Families) {
    let image = disk.image_path.as_ref().map(|path| path.display().to_string());
    let format = disk.stack.image.as_ref().map(|image| image.format().to_string());
    let file = disk.stack.image.as_ref().map(|image| image.file());
    let direct = file.map(|file| file.is_direct().to_string());
    let engine = file.and_then(|file| file.engine()).map(|engine| engine.name());
    let serving = disk.stack.image.as_ref().map(|image| image.serving());
    let labels = [
        ("image", image.as_deref().unwrap_or_default()),
        ("format", format.as_deref().unwrap_or_default()),
        ("direct", direct.as_deref().unwrap_or_default()),
        ("engine", engine.unwrap_or_default()),
        ("serving", serving.as_deref().unwrap_or_default()),
        ("serial", &disk.serial),
        ("group", disk.stack.limits.group().unwrap_or_default()),
        ("vm", &disk.vm_name()),
    ];
    families.add(&INFO, &labels, 1.0);
}

fn read(disk: Option<&Disk>, families: &mut Families) {
    families.read(Device::METRICS, disk.map(|it| &*it.shared));
    let queues = disk.map(|it| it.queues.all());
    let queues: Option<Vec<Arc<QueueCounters>>> =
        queues.map(|all| all.into_iter().map(|(_, queue)| queue).collect());
    families.read(QueueCounters::METRICS, queues.as_deref());
    families.read_durations(QueueCounters::DURATIONS, queues.as_deref());
    families.read(Failures::METRICS, disk.map(|it| &*it.queues.failures));
    Stack::read(disk.map(|it| &it.stack), families);
    // Known only to the image's host, or counted under a lock of the image.
    let probe = disk.and_then(|it| it.probe.as_ref());
    let told = probe.map(|it| it.last(TOLD_AGE)).unwrap_or_default();
    families.read(Space::METRICS, told.space.as_ref());
    for (family, which, value) in told.own.iter().flat_map(|own| &own.metrics) {
        families.add(family, &[(family.labels, which)], *value);
    }
}
