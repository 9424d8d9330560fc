//! A served disk: its stack, its socket, its queues.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use flowstone_block::{Errno, Error, Result, Sector, SectorCount, SizeChange, lock, mutated};
use flowstone_control::{Event, Events};
use flowstone_runner::{DiskQueues, DiskRun, Pollers, QueueTable};
use tracing::info;

use crate::SocketAccess;
use crate::config::{DiskConfig, VmSpec};
use crate::front_end::{Device, FrontEnd, FrontEndOptions, GuestChange};
use crate::image_probe::ImageProbe;
use crate::memory_charge;
use crate::stack::Stack;

/// A disk with a listening socket.
pub struct Disk {
    pub number: u32,
    pub name: String,
    pub serial: String,
    pub image_path: Option<PathBuf>,
    /// `image_path` without symbolic links, resolved when the disk was opened.
    real_path: Option<PathBuf>,
    pub socket: PathBuf,
    pub stack: Stack,
    /// Queries the host about the image, if there is one.
    pub probe: Option<ImageProbe>,
    pub shared: Arc<Device>,
    pub queues: Arc<QueueTable>,
    /// Configured properties of its VM.
    pub vm: VmSpec,
    /// Name of the VM that used it last.
    vm_name: Mutex<String>,
    front_end: FrontEnd,
    /// Locked while it grows.
    growing: Mutex<()>,
}

impl Disk {
    /// Starts listening; `pollers` run its queues, `events` receives its events. `number` is unique
    /// in the daemon.
    pub fn start(
        stack: Stack,
        number: u32,
        config: DiskConfig,
        pollers: Arc<Pollers>,
        events: &Arc<Events>,
    ) -> Result<Self> {
        let (name, serial) = (config.name(), config.serial());
        if let Some(image) = &stack.image {
            info!(disk = name, "serving {}", image.serving());
        }
        let probe = stack.image.clone().map(ImageProbe::new);
        let shared = Arc::new(Device::new(stack.top.geometry().capacity));
        let queues = Arc::new(QueueTable::new(name.clone()));
        tell_events(events, &name, &stack, &shared, &queues);
        let run = DiskRun {
            name: name.clone(),
            number,
            poll: config.poll,
            pipeline: config.pipeline,
            cpus: config.cpus.unwrap_or_default(),
            cpu_budget: config.beside.cpu_budget,
        };
        let (top, limit) = (Arc::clone(&stack.top), Arc::clone(&stack.limits));
        let (table, device) = (Arc::clone(&queues), Arc::clone(&shared));
        let has_started = move || memory_charge::guest_starts(number, &device);
        let runner = DiskQueues::new(run, top, limit, pollers, table, has_started);
        let options = FrontEndOptions {
            layer: Arc::clone(&stack.top),
            shared: Arc::clone(&shared),
            queues_max: config.queues,
            id: serial.clone(),
        };
        let access = config.beside.access;
        let front_end = FrontEnd::start(&name, &config.socket, access, options, runner)?;
        Ok(Self {
            number,
            vm: config.vm.unwrap_or_default(),
            vm_name: Mutex::default(),
            serial,
            name,
            real_path: config.stack.image.as_deref().and_then(|path| path.canonicalize().ok()),
            image_path: config.stack.image,
            socket: config.socket,
            stack,
            probe,
            shared,
            queues,
            front_end,
            growing: Mutex::new(()),
        })
    }

    /// Returns whether an operator's word names this disk: its name, or the path of its image. Does
    /// not access a file system.
    pub fn is_called(&self, name: &str, path: &Path) -> bool {
        let mine = [&self.image_path, &self.real_path];
        self.name == name || mine.into_iter().flatten().any(|mine| mine == path)
    }

    /// Sets the name of the VM that uses it.
    pub fn set_vm_name(&self, name: &str) {
        name.clone_into(&mut lock(&self.vm_name));
    }

    /// Returns the name of the VM that uses it: the configured one, or the one detected last. Does
    /// not access the host.
    pub fn vm_name(&self) -> String {
        let seen = || lock(&self.vm_name).clone();
        let seen = self.shared.is_connected().then(seen).unwrap_or_default();
        self.vm.name.clone().unwrap_or(seen)
    }

    /// Changes who may connect; connected monitors stay.
    pub fn set_access(&self, access: SocketAccess) -> Result<()> {
        access.open(&self.socket, &format!("socket {}", self.socket.display()))
    }

    /// Grows the disk while its guest runs. Returns its new size, and whether a guest was told.
    pub fn grow(&self, change: SizeChange) -> Result<(SectorCount, bool)> {
        let what = || format!("resize {}", self.name);
        // Not waited for: the other resize may hang, and each waiting request occupies a thread.
        let _alone = match self.growing.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let why = "it is being resized";
                return Err(Error::busy(what(), why, "try again later"));
            }
        };
        let Some(image) = &self.stack.image else {
            return Err(Error::unsupported(
                what(),
                "it has no image",
                "restart it with another size",
            ));
        };
        if image.geometry().readonly {
            let why = "it is served read-only";
            return Err(Error::invalid(what(), why, "serve it without readonly to grow it"));
        }
        let now = image.geometry().capacity;
        let bytes = change.apply(now.bytes());
        let capacity = bytes.and_then(SectorCount::from_bytes).ok_or_else(|| {
            Error::invalid(what(), "the size is not a multiple of 512 bytes", "round it")
        })?;
        if capacity < now {
            let why = "a guest would lose the end of a disk it is using";
            return Err(Error::invalid(what(), why, "stop the daemon to shrink an image"));
        }
        image.resize(capacity)?;
        let told = self
            .shared
            .announce_capacity(capacity)
            .map_err(|error| Error::host(what(), error, "reboot the guest to show it the size"))?;
        Ok((capacity, told))
    }

    /// Tells the disk to stop taking requests; does not wait.
    pub fn begin_stop(&self) {
        self.front_end.begin_stop();
    }

    /// After [`begin_stop`](Self::begin_stop): waits for requests in flight, and ends recordings. A
    /// monitor that is still connected at `deadline` is disconnected. The image stays in use until
    /// the disk is closed.
    pub fn stop(&self, deadline: Instant) {
        self.front_end.stop(&self.name, deadline);
        self.stack.recorder.close();
        self.stack.recorder.wait(deadline);
    }

    /// After [`stop`](Self::stop): makes the image durable and closes it.
    pub fn close(self) -> Result<()> {
        let image = self.stack.image.clone();
        drop(self);
        let closes = mutated("daemon.disk.stops-without-flush", true, false);
        match image {
            Some(image) if closes => image.close(),
            _ => Ok(()),
        }
    }
}

/// Connects the parts of a disk to the event stream.
fn tell_events(
    events: &Arc<Events>,
    name: &str,
    stack: &Stack,
    device: &Device,
    queues: &QueueTable,
) {
    let (mine, disk) = (Arc::clone(events), name.to_owned());
    device.watch(move |change| {
        mine.tell(
            &disk,
            match change {
                GuestChange::Come(peer) => Event::Connected { process: peer.map(|peer| peer.pid) },
                GuestChange::Gone(reason) => Event::Disconnected { reason },
            },
        );
    });
    let (mine, disk) = (Arc::clone(events), name.to_owned());
    queues.failures.watch(Box::new(move |kind, errno| {
        if matches!(errno, Errno::NOSPC | Errno::DQUOT) {
            mine.tell(&disk, Event::Full { request: kind.name() });
        }
    }));
    let Some(image) = &stack.image else { return };
    let (mine, disk) = (Arc::clone(events), name.to_owned());
    image.watch_damages(Box::new(move |damage| {
        let lba = damage.lba.map(Sector::get);
        mine.tell(&disk, Event::Damaged { what: &damage.what, lba, offset: damage.offset });
    }));
}
