//! Sizes copies in memory, and exchanges messages with the host about it over a virtio port, if
//! there is one: a report each epoch, at least three per lease, and grants as they come.
//!
//! An absent host costs nothing: lines are buffered by QEMU, or dropped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use flowstone_memory::message::{self, LEASE, LINE_BYTES_MAX, Lines, Report, ToGuest, ToHost};
use flowstone_memory::reading::Reader;

use crate::budget::Budgets;
use crate::files::Files;

const PORTS: &str = "/sys/class/virtio-ports";
/// Interval of memory readings.
const PERIOD: Duration = Duration::from_millis(500);
/// Lower limit of that interval, for short epochs.
const PERIOD_MIN: Duration = Duration::from_millis(10);
/// Delay before another try to reach a host that has gone.
const RETRY: Duration = Duration::from_secs(1);

/// Starts the thread that sizes the copies of a mount.
pub fn start(
    files: &Arc<Files>,
    budgets: Budgets,
    port: Option<PathBuf>,
    epoch: Duration,
) -> io::Result<()> {
    let files = files.clone();
    let work =
        move || Agent { budgets, files, port, talk: None, tried: None, refused: false }.run(epoch);
    Builder::new().name("agent".into()).spawn(work).map(drop)
}

struct Agent {
    budgets: Budgets,
    files: Arc<Files>,
    /// The path given by an option.
    port: Option<PathBuf>,
    talk: Option<Talk>,
    tried: Option<Instant>,
    /// A refusal by the host, which hears another cache of this VM, has been logged.
    refused: bool,
}

impl Agent {
    fn run(mut self, epoch: Duration) {
        let (mut reader, start) = (Reader::of_this_process(), Instant::now());
        let mut reported: Option<Instant> = None;
        loop {
            thread::sleep(PERIOD.min(epoch.max(PERIOD_MIN)));
            let now = Instant::now();
            let curve = self.files.copies.curve();
            let held = self.files.copies.holdings().bytes;
            if let Some(reading) = reader.read() {
                self.budgets.read(now - start, reading, held, &curve);
            }
            self.listen(now);
            self.files.copies.limit_to(self.budgets.now(now));
            if reported.is_none_or(|at| now - at >= epoch.min(LEASE / 3)) {
                reported = Some(now);
                self.report(curve);
            }
        }
    }

    /// Processes the grants that have arrived.
    fn listen(&mut self, now: Instant) {
        if self.talk.is_none() && self.tried.is_none_or(|at| now - at >= RETRY) {
            self.tried = Some(now);
            self.talk = Talk::open(self.port.as_deref());
        }
        let Some(talk) = &mut self.talk else { return };
        let (budgets, refused) = (&mut self.budgets, &mut self.refused);
        let heard = talk.hear(|line| match serde_json::from_slice(line) {
            Ok(ToGuest::Grant(grant)) => {
                budgets.granted(&grant, now);
                *refused = false;
            }
            Ok(ToGuest::Refused(refusal)) => {
                // The host repeats its refusal.
                if !std::mem::replace(refused, true) {
                    eprintln!("the host does not hear this cache: {}", refusal.reason);
                }
            }
            // A later host may send messages that this guest does not know.
            Err(_) => {}
        });
        if heard.is_err() {
            self.talk = None;
        }
    }

    fn report(&mut self, curve: Vec<f64>) {
        let Some(talk) = &mut self.talk else { return };
        let has = self.files.report();
        let report = Report {
            used_bytes: has.cached_bytes,
            limit_bytes: has.limit_bytes,
            wanted_bytes: self.files.copies.bytes_max(),
            dirty_bytes: self.files.write_back.bytes(),
            pinned_bytes: has.pinned_bytes,
            hits: has.counters.hits.get(),
            misses: has.counters.misses.get(),
            prefetched_bytes: has.counters.prefetched_bytes.get(),
            curve,
        };
        if talk.say(&message::line(&ToHost::Report(report))).is_err() {
            self.talk = None;
        }
    }
}

/// The connection to the host.
struct Talk {
    to_host: File,
    /// It is a socket, and not a port.
    is_socket: bool,
    lines: Lines,
}

impl Talk {
    /// Opens the given path, or else the virtio port. One process can have it open at a time.
    fn open(given: Option<&Path>) -> Option<Self> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => port_called(message::PORT, Path::new(PORTS))?,
        };
        let (to_host, is_socket) = match UnixStream::connect(&path) {
            Ok(stream) => {
                stream.set_nonblocking(true).ok()?;
                (File::from(OwnedFd::from(stream)), true)
            }
            Err(_) => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
                (options.open(path).ok()?, false)
            }
        };
        Some(Self { to_host, is_socket, lines: Lines::default() })
    }

    fn hear(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        let mut buffer = [0; LINE_BYTES_MAX];
        loop {
            let bytes = match self.to_host.read(&mut buffer) {
                // A port stays open when the host disconnects; a socket does not.
                Ok(0) if !self.is_socket => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                read => read?,
            };
            let heard = self.lines.push(&buffer[..bytes], &mut each);
            heard.map_err(|_| io::Error::other("a line is too long"))?;
        }
    }

    /// Sends a line. One that does not fit is dropped; the next one is newer.
    fn say(&mut self, line: &[u8]) -> io::Result<()> {
        match self.to_host.write(line) {
            Ok(bytes) if bytes == line.len() => Ok(()),
            // A partial line would corrupt the next one.
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Returns the device of a virtio port by its name in QEMU.
fn port_called(name: &str, ports: &Path) -> Option<PathBuf> {
    let is_it = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("name")).is_ok_and(|found| found.trim_end() == name)
    };
    let port = fs::read_dir(ports).ok()?.flatten().find(is_it)?;
    Some(Path::new("/dev").join(port.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_found_by_its_name() {
        let ports = tempfile::tempdir().unwrap();
        for (device, name) in [("vport1p1", "org.qemu.guest_agent.0\n"), ("vport1p2", "mine\n")] {
            fs::create_dir(ports.path().join(device)).unwrap();
            fs::write(ports.path().join(device).join("name"), name).unwrap();
        }
        assert_eq!(port_called("mine", ports.path()), Some("/dev/vport1p2".into()));
        assert_eq!(port_called("other", ports.path()), None);
        assert_eq!(port_called("mine", Path::new("/nowhere")), None);
    }
}
