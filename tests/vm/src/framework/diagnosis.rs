//! The state of a guest that hangs: its processors, the queues of its script channel, and the rings
//! of its disks.
//!
//! From a disk's counters, a guest that has booted and is idle looks the same whether a
//! notification was lost (our bug), the script channel stalled, or the emulator was slow. The rings
//! show the first case: `avail.idx` past `used.idx`, and an `avail_event` that asks for no kick.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::qmp::Qmp;

/// More queues than a device of any test guest has.
const QUEUES_MAX: u16 = 8;
/// Pause between two readings of the registers: the same place twice is a loop or a halt.
const PAUSE: Duration = Duration::from_millis(200);

/// Returns everything that QEMU reports, as far as it still answers.
#[must_use]
pub fn of(qmp: &mut Qmp) -> String {
    let mut text = String::new();
    let parts = [processors(qmp), devices(qmp)];
    for part in parts {
        let _ = match part {
            Ok(found) => writeln!(text, "{found}"),
            Err(error) => writeln!(text, "no diagnosis: {error:#}"),
        };
    }
    text
}

/// Returns the registers, read twice. The kernel's addresses are those of System.map (`nokaslr`).
fn processors(qmp: &mut Qmp) -> Result<String> {
    let mut text = String::new();
    for look in 1..=2 {
        let registers = monitor(qmp, "info registers -a")?;
        let telling = registers
            .lines()
            .filter(|line| ["CPU#", "RAX", "RIP"].iter().any(|name| line.starts_with(name)));
        writeln!(text, "processors, look {look}:")?;
        telling.for_each(|line| text.extend([line, "\n"]));
        std::thread::sleep(PAUSE);
    }
    Ok(text)
}

fn devices(qmp: &mut Qmp) -> Result<String> {
    let mut text = String::new();
    let devices = qmp.execute("x-query-virtio", &json!({}))?;
    for device in devices.as_array().context("a list of devices")? {
        let (name, path) = (field(device, "name"), field(device, "path"));
        for queue in 0..QUEUES_MAX {
            let found = match name {
                "virtio-serial" => serial_queue(qmp, path, queue),
                // For a vhost device x-query-virtio-queue-status would stop the queue.
                "virtio-blk" => disk_ring(qmp, path, queue),
                _ => break,
            };
            match found {
                Ok(found) => writeln!(text, "{name} queue {queue}: {found}")?,
                Err(_) => break, // it has no such queue
            }
        }
    }
    Ok(text)
}

fn serial_queue(qmp: &mut Qmp, path: &str, queue: u16) -> Result<String> {
    let which = json!({ "path": path, "queue": queue });
    let status = qmp.execute("x-query-virtio-queue-status", &which)?;
    Ok(["inuse", "last-avail-idx", "shadow-avail-idx", "used-idx", "signalled-used"]
        .map(|name| format!("{name} {}", status[name]))
        .join(", "))
}

/// Returns indices and events of a split ring, from guest memory (virtio 1.2, 2.7).
fn disk_ring(qmp: &mut Qmp, path: &str, queue: u16) -> Result<String> {
    let which = json!({ "path": path, "queue": queue });
    let status = qmp.execute("x-query-virtio-vhost-queue-status", &which)?;
    let number = |name| status[name].as_u64().with_context(|| format!("no {name}"));
    let (size, avail, used) = (number("num")?, number("avail-phys")?, number("used-phys")?);
    let places = [
        ("avail.flags", avail),
        ("avail.idx", avail + 2),
        ("used_event", avail + 4 + 2 * size),
        ("used.flags", used),
        ("used.idx", used + 2),
        ("avail_event", used + 4 + 8 * size),
    ];
    let mut found = vec![format!("size {size}")];
    for (name, at) in places {
        let line = monitor(qmp, &format!("xp /1uh {at:#x}"))?;
        let value = line.rsplit(':').next().unwrap_or_default().trim();
        found.push(format!("{name} {value}"));
    }
    Ok(found.join(", "))
}

fn monitor(qmp: &mut Qmp, command: &str) -> Result<String> {
    let answer = qmp.execute("human-monitor-command", &json!({ "command-line": command }))?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

fn field<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}
