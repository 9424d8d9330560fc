//! The connection to the kernel: made by a mount, answered by threads, and used to tell it things.

use std::path::Path;
use std::sync::Arc;

use crate::files::Files;
use crate::fuse::{Answers, BackingId, Config, INodeNo, MountOption, Notifier, SessionACL};
use crate::mount_point::PREFIX;

/// Threads that answer. A call to the source holds one.
const THREADS: usize = 8;
/// Most bytes of a write, and what a read ahead may ask for. Each thread keeps a buffer.
pub const REQUEST_MAX: u32 = 1 << 20;

/// The kernel's hold on a file that it opens itself.
pub struct Backing(pub(crate) BackingId);

/// The way to tell the kernel things.
pub struct Kernel(Notifier);

impl Kernel {
    /// The attributes that it keeps of a node are too old. (Its pages are not touched: that could
    /// wait for a request that waits for this one.)
    pub fn take_back_attributes(&self, id: u64) {
        // A node that it does not know has no attributes there.
        let _ = self.0.inval_inode(INodeNo(id), -1, 0);
    }
}

/// A mount that is not answered yet.
pub struct Session(crate::fuse::Session<Answers>);

impl Session {
    /// The way to tell the kernel things.
    pub fn kernel(&self) -> Kernel {
        Kernel(self.0.notifier())
    }

    /// Answers until the mount is gone.
    pub fn run(self) -> std::io::Result<()> {
        self.0.run()
    }
}

/// Mounts.
pub fn mount(files: &Arc<Files>, source: &Path, at: &Path) -> std::io::Result<Session> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{PREFIX}{}", source.display())),
        // The kernel judges by attributes; the source by the caller's ids, at each call.
        MountOption::DefaultPermissions,
    ];
    if rustix::process::geteuid().is_root() {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    crate::fuse::Session::new(Answers { files: files.clone() }, at, &config).map(Session)
}
