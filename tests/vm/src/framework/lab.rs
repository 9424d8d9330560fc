//! The lab of a guest test: a place to run and a folder of its own, or a reason to skip.
//!
//! An emulated guest keeps a processor busy two thirds of the time. So there is one place more than
//! processors; each is a file lock, which works across threads and programs.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::accel::Accel;
use super::artifacts::{Artifacts, Kernel};
use super::daemon::{self, Daemon};
use super::guest::Guest;
use super::qemu::{Disk, Machine};
use super::workspace;

/// Set in CI: guests that cannot run are then a failure.
const REQUIRE: &str = "FLOWSTONE_REQUIRE_GUESTS";

/// The format of a disk's image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `disk.raw`
    Raw,
    /// `disk.qcow2`
    Qcow2,
    /// `disk.flow`
    Log,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Raw, Self::Qcow2, Self::Log];

    /// Returns a file name with the extension of the format.
    #[must_use]
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Raw => "disk.raw",
            Self::Qcow2 => "disk.qcow2",
            Self::Log => "disk.flow",
        }
    }
}

/// A folder, an accelerator and the artifacts of guests.
#[derive(Debug)]
pub struct Lab {
    // Dropped in this order: the folder is removed while the place is still held.
    folder: TempDir,
    artifacts: Artifacts,
    accel: Accel,
    _place: File,
}

impl Lab {
    /// Opens a lab; the error is the reason why guests cannot run here.
    pub fn open() -> Result<Self> {
        Self::open_with(Kernel::Cloud)
    }

    /// Opens a lab with guests of this kernel.
    fn open_with(kernel: Kernel) -> Result<Self> {
        workspace::flowstone()?;
        fs::create_dir_all(workspace::guest_folder())?;
        let place = wait_for_place()?;
        // Only one lab at a time builds the artifacts that all boot.
        let building = File::create(workspace::guest_folder().join("building"))?;
        building.lock().context("wait for other labs")?;
        let artifacts = Artifacts::find(kernel)?;
        let accel = Accel::choose(&artifacts)?.of_kernel(kernel);
        // Outside of the source tree: socket paths must be shorter than 108 bytes.
        let folder = TempDir::with_prefix("flowstone-")?;
        Ok(Self { folder, artifacts, accel, _place: place })
    }

    /// Opens a lab for a test. `None` skips the test, with the reason printed.
    ///
    /// # Panics
    /// If guests cannot run here and `FLOWSTONE_REQUIRE_GUESTS` is set.
    #[must_use]
    pub fn open_or_skip() -> Option<Self> {
        Self::open_with_or_skip(Kernel::Cloud)
    }

    /// The same with guests of this kernel.
    ///
    /// # Panics
    /// As [`open_or_skip`](Self::open_or_skip).
    #[must_use]
    pub fn open_with_or_skip(kernel: Kernel) -> Option<Self> {
        match Self::open_with(kernel) {
            Ok(lab) => Some(lab),
            Err(reason) if std::env::var_os(REQUIRE).is_some() => {
                panic!("guests are required and cannot run: {reason:#}")
            }
            Err(reason) => {
                flowstone_testkit::skip(format_args!("{reason:#}"));
                None
            }
        }
    }

    /// Returns the lab's folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the accelerator of guests.
    #[must_use]
    pub fn accel(&self) -> Accel {
        self.accel
    }

    /// Returns the artifacts that guests boot.
    #[must_use]
    pub fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }

    /// Creates an empty raw image, such as `256M`.
    pub fn image(&self, size: &str) -> Result<PathBuf> {
        self.image_of(Format::Raw, size, &[])
    }

    /// Creates an empty image of any format, with further `options` of `flowstone create`.
    pub fn image_of(&self, format: Format, size: &str, options: &[&str]) -> Result<PathBuf> {
        let image = self.folder().join(format.file_name());
        let path = image.to_string_lossy();
        daemon::flowstone(&[&["create", "--size", size], options, &[&path]].concat())?;
        Ok(image)
    }

    /// Serves an image from the lab's folder.
    pub fn serve(&self, image: &Path, options: &[&str]) -> Result<Daemon> {
        Daemon::serve(image, options, self.folder())
    }

    /// Serves one of several images, from a folder called `name`.
    pub fn serve_as(&self, name: &str, image: &Path, options: &[&str]) -> Result<Daemon> {
        let folder = self.folder().join(name);
        fs::create_dir(&folder)?;
        Daemon::serve(image, options, &folder)
    }

    /// Boots a guest with the daemon's disk as `/dev/vda`.
    pub fn boot(&self, daemon: &Daemon, queues: u16) -> Result<Guest> {
        self.boot_machine(&Self::machine(daemon, queues))
    }

    /// Boots a guest of this machine.
    pub fn boot_machine(&self, machine: &Machine) -> Result<Guest> {
        let guests = self.boot_machines(std::slice::from_ref(machine))?;
        guests.into_iter().next().context("one guest")
    }

    /// Boots guests side by side.
    pub fn boot_machines(&self, machines: &[Machine]) -> Result<Vec<Guest>> {
        let started: Vec<_> = machines.iter().map(|machine| self.start_boot(machine)).collect();
        let up = |(machine, started): (&Machine, Result<Guest>)| {
            // Occasionally an emulated guest spins before it has printed its first line, while our
            // daemon sleeps. The cause is unknown: once is reported, twice is a failure.
            started.and_then(ready).or_else(|error| {
                eprintln!("the guest did not boot and is booted again: {error:#}");
                self.start_boot(machine).and_then(ready)
            })
        };
        machines.iter().zip(started).map(up).collect()
    }

    fn start_boot(&self, machine: &Machine) -> Result<Guest> {
        // A new folder per boot: QEMU does not remove the sockets of an earlier guest.
        let folder = tempfile::tempdir_in(self.folder())?.keep();
        Guest::start_boot(machine, self.accel, &self.artifacts, &folder)
    }

    /// Returns the machine that `boot` boots: it reconnects, so the daemon may be restarted.
    #[must_use]
    pub fn machine(daemon: &Daemon, queues: u16) -> Machine {
        Self::machine_of([daemon], queues)
    }

    /// The same with one disk per daemon, `/dev/vda` first.
    #[must_use]
    pub fn machine_of<'a>(daemons: impl IntoIterator<Item = &'a Daemon>, queues: u16) -> Machine {
        let sockets = daemons.into_iter().map(|daemon| daemon.socket().to_owned());
        let disk = |socket| Disk { socket, queues, reconnect: true };
        Machine::with_disks(sockets.map(disk).collect())
    }
}

fn ready(mut guest: Guest) -> Result<Guest> {
    guest.wait_ready()?;
    Ok(guest)
}

/// Waits until there are no more guests than processors.
fn wait_for_place() -> Result<File> {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    loop {
        for number in 0..=processors {
            let place = File::create(workspace::guest_folder().join(format!("place-{number}")))?;
            match place.try_lock() {
                Ok(()) => return Ok(place),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(error).context("wait for a place"),
            }
        }
        thread::sleep(Duration::from_millis(100));
    }
}
