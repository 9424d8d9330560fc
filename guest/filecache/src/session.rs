//! The FUSE connection to the kernel.

use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::files::Files;
use crate::fuse::Answers;
use crate::library::{self, Config, MountOption, SessionACL};
use crate::mount_point::PREFIX;
use crate::options::Options;
use crate::requests::Requests;

/// Threads that read requests.
pub const READERS: usize = 8;

/// A mount whose requests are not served yet.
pub type Session = library::Session<Answers>;

/// Mounts the file system.
pub fn mount(
    files: &Arc<Files>,
    requests: Arc<Requests>,
    options: &Options,
    at: &Path,
) -> std::io::Result<Session> {
    let source = &options.source;
    let has_xattrs = options.xattrs && has_xattrs(source);
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{PREFIX}{}", source.display())),
        // The kernel checks permissions by attributes; the source by the caller's ids, at each
        // call.
        MountOption::DefaultPermissions,
    ];
    if rustix::process::geteuid().is_root() {
        config.acl = SessionACL::All;
    }
    config.n_threads = Some(READERS);
    config.clone_fd = true;
    let answers = Answers { files: files.clone(), requests, has_xattrs };
    Session::new(answers, at, &config)
}

/// Returns whether files there can have extended attributes.
fn has_xattrs(source: &Path) -> bool {
    let asked = rustix::fs::getxattr(source, "user.flowstone", &mut [0_u8; 0][..]);
    !matches!(asked, Err(Errno::OPNOTSUPP | Errno::NOSYS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_without_extended_attributes_is_known() {
        assert!(!has_xattrs(Path::new("/proc")), "proc has none");
        let folder = tempfile::tempdir().unwrap();
        let can = rustix::fs::setxattr(
            folder.path(),
            "user.flowstone",
            b"",
            rustix::fs::XattrFlags::empty(),
        );
        assert_eq!(has_xattrs(folder.path()), can.is_ok());
    }
}
