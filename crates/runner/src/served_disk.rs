//! Disks for tests: real images behind real sockets, with queues run by the test's runner.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use flowstone_block::{Layer, QueueRunner};
use flowstone_fileio::{Access, DirectChoice, EngineChoice, FileArgs, LockPatience};
use flowstone_formats::{CreateOptions, ImageOptions, create, open};
use flowstone_frontend::vhost_user::{DeviceOptions, DeviceShared, Server, VirtQueue};
use flowstone_host::SocketAccess;
use flowstone_image::{Format, Image};
use flowstone_testkit::load::{LoadOptions, LoadReport};
use rustix::event::{EventfdFlags, eventfd};

/// Queues of each disk.
pub const QUEUES: u16 = 2;
const DISK_BYTES: u64 = 64 << 20;

/// A disk that is being served.
pub struct Served {
    pub socket: PathBuf,
    stop: Arc<std::os::fd::OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// An image, and how to serve it.
pub struct DiskConfig {
    image: PathBuf,
    pub socket: PathBuf,
    file: FileArgs,
}

/// Opens the image of a disk.
pub fn layer_of(config: &DiskConfig) -> Arc<dyn Layer> {
    let format = Format::choose(None, &config.image).unwrap();
    let options = ImageOptions::new(config.file.options(Access::Write));
    let image: Arc<dyn Image> = Arc::from(open(&config.image, format, options).unwrap());
    image
}

impl Served {
    /// Serves `layer`, with queues run by `runner`.
    pub fn new(
        config: &DiskConfig,
        layer: Arc<dyn Layer>,
        runner: Box<dyn QueueRunner<VirtQueue>>,
    ) -> Self {
        let options = DeviceOptions {
            shared: Arc::new(DeviceShared::new(layer.geometry().capacity)),
            layer,
            queues_max: QUEUES,
            id: "served".into(),
        };
        let server =
            Server::bind(&config.socket, SocketAccess::default(), options, runner).unwrap();
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        let told = Arc::clone(&stop);
        let thread = Some(thread::spawn(move || server.run(&told)));
        Self { socket: config.socket.clone(), stop, thread }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        rustix::io::write(&*self.stop, &1u64.to_ne_bytes()).unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || ended.is_some_and(|it| it.is_ok()));
    }
}

/// Creates an image and returns its configuration.
pub fn disk(dir: &Path, name: &str, engine: EngineChoice, direct: DirectChoice) -> DiskConfig {
    let path = dir.join(name);
    let format = Format::choose(None, &path).unwrap();
    let patience = LockPatience::NONE;
    create(&path, format, DISK_BYTES, &CreateOptions::default(), patience).unwrap();
    let socket = dir.join(format!("{name}.sock"));
    DiskConfig { image: path, socket, file: FileArgs { engine, direct } }
}

/// Runs a mixed load in which each block is read back and verified.
pub fn load(socket: &Path, ops: u64, seed: u64) -> LoadReport {
    let mut options = LoadOptions::new(socket).workload("mix").iodepth(8).ops(ops);
    options.client.queues = usize::from(QUEUES);
    options.flush_every = 16;
    (options.verify, options.verify_final, options.discard_zeroes) = (true, true, true);
    options.seed = seed;
    let report = flowstone_testkit::load::run(&options).unwrap();
    assert_eq!((report.errors, report.first_error.as_deref()), (0, None));
    assert!(report.verified_blocks > 0);
    report
}

/// Makes a directory beside the test's executable: /tmp may be in memory.
pub fn on_disk() -> tempfile::TempDir {
    let program = std::env::current_exe().unwrap();
    tempfile::tempdir_in(program.parent().unwrap()).unwrap()
}
