//! Starts `qemu-storage-daemon` on a fresh image.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;

use flowstone_testkit::process::{Ready, temp_dir};
use flowstone_testkit::{ClientOptions, Daemon, DaemonCommand, TempDir};

const PROGRAM: &str = "qemu-storage-daemon";

/// A running peer, and the directory of its socket and image.
pub struct Peer {
    pub daemon: Daemon,
    pub dir: TempDir,
    queues: usize,
}

impl Peer {
    /// Serves a sparse image of `bytes`; `None`, with a message, if the program is missing.
    pub fn start(bytes: u64, queues: usize) -> Option<Peer> {
        if Command::new(PROGRAM).arg("--version").output().is_err() {
            flowstone_testkit::skip(format_args!("{PROGRAM} is not installed"));
            return None;
        }
        let dir = temp_dir().unwrap();
        File::create(dir.path().join("image")).unwrap().set_len(bytes).unwrap();
        let daemon = spawn(&dir, queues);
        Some(Peer { daemon, dir, queues })
    }

    /// Starts another daemon after the first one has ended.
    pub fn restart(&mut self) {
        std::fs::remove_file(self.socket()).ok();
        self.daemon = spawn(&self.dir, self.queues);
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub fn options(&self) -> ClientOptions {
        ClientOptions::new(self.socket()).queues(self.queues)
    }
}

fn spawn(dir: &TempDir, queues: usize) -> Daemon {
    let (socket, image) = (dir.path().join("socket"), dir.path().join("image"));
    let node = format!(
        "driver=raw,node-name=d,discard=unmap,file.driver=file,file.filename={}",
        image.display()
    );
    let export = format!(
        "type=vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path={},writable=on,num-queues={queues}",
        socket.display()
    );
    DaemonCommand::new(PROGRAM)
        .args(["--blockdev", &node, "--export", &export])
        .ready(Ready::Sockets(vec![socket]))
        .spawn()
        .unwrap()
}
