//! The engine that serves a file, chosen once by probing the host.

use std::fs::File;

use clap::ValueEnum;
use flowstone_block::{Error, Result, mutated, named};
use flowstone_host::may_ask_a_server;
use io_uring::{IoUring, Probe, opcode};
use rustix::fs::fstatfs;

/// The engine asked for by the operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// The best engine that the host supports for this file
    #[default]
    Auto,
    /// io_uring, or fail; files on a server (FUSE, NFS) are always served by threads
    Uring,
    /// Threads
    Sync,
}

named! {
    /// The way in which requests reach the file.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Engine {
        /// The io_uring of the thread that runs the queue.
        Uring = "uring",
        /// A pool of threads that make blocking calls.
        Sync = "sync",
        /// Calls on the thread that runs the queue: the file is in memory, so a call never waits
        /// for a device.
        Inline = "inline",
    }
}

impl EngineChoice {
    /// Picks the engine of an open file.
    pub fn resolve(self, file: &File) -> Result<Engine> {
        let asks = || mutated("fileio.engine.ring-for-servers", may_ask_a_server(file), false);
        match self {
            Self::Sync => Ok(Engine::Sync),
            Self::Uring | Self::Auto if asks() => Ok(Engine::Sync),
            Self::Auto if is_memory(file) => Ok(Engine::Inline),
            Self::Auto => Ok(if uring_works() { Engine::Uring } else { Engine::Sync }),
            Self::Uring if uring_works() => Ok(Engine::Uring),
            Self::Uring => Err(Error::unsupported(
                "io_uring",
                "this kernel does not offer it or it is disabled (kernel.io_uring_disabled)",
                "use --engine auto or --engine sync",
            )),
        }
    }
}

/// Returns whether the file's data is in memory (tmpfs, ramfs). A device's node in `/dev` is on
/// such a file system, but the device is not.
fn is_memory(file: &File) -> bool {
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    is_file
        && fstatfs(file)
            .is_ok_and(|answer| answer.f_type == libc::TMPFS_MAGIC || answer.f_type == RAMFS_MAGIC)
}

/// Returns whether a ring can be created here and has every operation that the engine uses.
fn uring_works() -> bool {
    let Ok(ring) = IoUring::new(2) else {
        return false;
    };
    let mut probe = Probe::new();
    if ring.submitter().register_probe(&mut probe).is_err() {
        return false;
    }
    [
        opcode::Readv::CODE,
        opcode::Writev::CODE,
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::PollAdd::CODE,
    ]
    .into_iter()
    .all(|code| probe.is_supported(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block devices were served with blocking calls on the queue's own thread: `/dev` is a tmpfs,
    /// and the file system of the node was checked.
    #[test]
    fn a_device_is_not_memory_because_its_name_is() {
        let device = File::open("/dev/null").expect("every host has it");
        assert!(!is_memory(&device));
    }

    #[test]
    fn a_file_on_tmpfs_is_memory() {
        let file = tempfile::tempfile_in("/dev/shm").expect("/dev/shm is there");
        assert!(is_memory(&file));
    }
}
