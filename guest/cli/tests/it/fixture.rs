//! A mount for a test: a source, a mount point, and the daemon between them. All are removed when
//! it is dropped.

use std::fs::{self, File};
use std::io::{BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flowstone_filecache::control::{Question, ask};
use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand, HANG, TempDir, skip, wait_for, wait_until};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_flowstone-guest");

/// A mount, and its source.
pub struct Mount {
    folder: TempDir,
    daemon: Option<Daemon>,
    options: Vec<String>,
    /// A command that starts the daemon; empty to start it directly.
    starter: &'static [&'static str],
    host: Option<FuseHost>,
}

impl Mount {
    /// Starts a mount with these options; `None`, with a message, if mounting is impossible here.
    pub fn start(options: &[&str]) -> Option<Self> {
        let mut mount = Self::prepare(options)?;
        mount.begin();
        Some(mount)
    }

    /// The same, with the daemon started by a command.
    pub fn start_by(starter: &'static [&'static str], options: &[&str]) -> Option<Self> {
        let mut mount = Self::prepare(options)?;
        mount.starter = starter;
        mount.begin();
        Some(mount)
    }

    /// The same over a source on a server whose failures can be simulated.
    pub fn over_server(options: &[&str]) -> Option<Self> {
        let mut mount = Self::prepare(options)?;
        fs::create_dir(mount.beside("behind")).unwrap();
        let host = FuseHost::mount_source(&mount.beside("source"), &mount.beside("behind"));
        mount.host = Some(host.unwrap());
        mount.begin();
        Some(mount)
    }

    fn prepare(options: &[&str]) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let folder = TempDir::new().unwrap();
        // Other users need access.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        for name in ["source", "mount"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let options = options.iter().map(|it| (*it).to_owned()).collect();
        Some(Self { folder, daemon: None, options, starter: &[], host: None })
    }

    /// Waits until the daemon has detected that the source does not answer.
    pub fn wait_until_down(&self) {
        wait_until("the source is down", || {
            // Fails, or is answered from local state.
            let _ = fs::metadata(self.at("of which there is no copy"));
            self.stats()["source"] == "down"
        });
    }

    /// Returns the server of the source.
    pub fn server(&self) -> &FuseHost {
        self.host.as_ref().unwrap()
    }

    /// The same with modes Copy and Source; `None` if the kernel has no passthrough.
    pub fn with_passthrough(options: &[&str]) -> Option<Self> {
        let mount = Self::start(options)?;
        mount.write_source("probe", "x");
        mount.read("probe");
        let passes = mount.stat("opens/source") > 0;
        fs::remove_file(mount.at("probe")).unwrap();
        if !passes {
            skip("this kernel or this machine has no FUSE passthrough (Linux 6.9, CAP_SYS_ADMIN)");
        }
        passes.then_some(mount)
    }

    /// Starts the daemon.
    pub fn begin(&mut self) {
        let words: Vec<_> = self.starter.iter().copied().chain([PROGRAM]).collect();
        let daemon = DaemonCommand::new(words[0])
            .args(&words[1..])
            .args(["cache", "--source"])
            .arg(self.folder.path().join("source"))
            .arg("--mount")
            .arg(self.root())
            .args(self.options.clone())
            .ready(Ready::Now)
            .spawn();
        self.daemon = Some(daemon.unwrap());
        let daemon = self.daemon.as_mut().unwrap();
        wait_until("the mount is served", || {
            assert!(daemon.try_wait().unwrap().is_none(), "{}", daemon.stderr());
            daemon.stdout().contains("serving ")
        });
    }

    /// Returns the daemon.
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().unwrap()
    }

    /// Returns the mount point.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// Returns the path of a file in the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// Returns the path of the same file at the source.
    pub fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    /// Returns a path outside of both.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file at the source.
    pub fn write_source(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.source(name), text).unwrap();
    }

    /// Reads a file of the mount.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.at(name)).unwrap()
    }

    /// Makes a file at the source, and waits for its copy.
    pub fn copied(&self, name: &str, text: impl AsRef<[u8]>) {
        self.write_source(name, text);
        self.wait_for_copy(name);
    }

    /// Reads a file until it is served from a copy.
    pub fn wait_for_copy(&self, name: &str) {
        self.wait_for_copies(&[name]);
    }

    /// The same for files that all have changed: it takes as long as for one.
    pub fn wait_for_copies(&self, names: &[impl AsRef<Path>]) {
        let is_hit = |name: &Path| {
            let before = self.stat("hits");
            fs::read(self.root().join(name)).unwrap();
            self.stat("hits") > before
        };
        wait_until("there are copies", || {
            names.iter().filter(|it| !is_hit(it.as_ref())).count() == 0
        });
    }

    /// Returns a counter, by its path.
    pub fn stat(&self, path: &str) -> u64 {
        let stats = self.stats();
        let value = stats.pointer(&format!("/{path}")).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no {path} in {stats}"))
    }

    /// Returns all counters.
    pub fn stats(&self) -> Value {
        // As the command does, without a process for each look.
        let mut line = String::new();
        ask(&self.root(), &Question::Stats).unwrap().read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Runs another command of the program on this mount.
    pub fn run(&self, before: &[&str], after: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(before).arg(self.root()).args(after).output().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process that waits for a server cannot end.
        if let Some(host) = &self.host {
            host.recover();
        }
        if let Some(daemon) = &mut self.daemon
            && daemon.terminate(HANG).is_err()
        {
            let _ = daemon.kill();
        }
        while unmount(self.root(), UnmountFlags::DETACH).is_ok() {}
    }
}

fn can_mount() -> bool {
    let why = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !rustix::process::geteuid().is_root() {
        "only root may mount here"
    } else {
        return true;
    };
    skip(why);
    false
}

/// Reads a file from its position to its end.
pub fn rest_of(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Makes written data durable.
#[expect(clippy::disallowed_methods, reason = "no image of a disk is a file of a guest's mount")]
pub fn sync(file: &File) -> std::io::Result<()> {
    file.sync_all()
}

/// Appends to a file.
pub fn append(path: &Path, text: &str) {
    let mut file = File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

/// Waits until a file has this text.
#[track_caller]
pub fn wait_for_text(path: &Path, text: &str) {
    wait_for("the file has the new text", || {
        let read = fs::read_to_string(path);
        if read.as_ref().is_ok_and(|it| it == text) { Ok(()) } else { Err(read) }
    });
}
