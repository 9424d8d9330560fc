//! A mount for a test: a source, a mount point, and the daemon between them. All are gone when it
//! is dropped.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flowstone_testkit::fuse::FuseHost;
use flowstone_testkit::process::Ready;
use flowstone_testkit::{Daemon, DaemonCommand, HANG, TempDir, skip, wait_for, wait_until};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_flowstone-guest");

/// A mount, and the folder that it shows.
pub struct Mount {
    folder: TempDir,
    daemon: Option<Daemon>,
    options: Vec<String>,
    /// A command that starts the daemon, if it is not started as it is.
    starter: &'static [&'static str],
    host: Option<FuseHost>,
}

impl Mount {
    /// A mount with these options; nothing, and says why, where there can be none.
    pub fn start(options: &[&str]) -> Option<Self> {
        let mut mount = Self::prepare(options)?;
        mount.begin();
        Some(mount)
    }

    /// The same, started by a command.
    pub fn start_by(starter: &'static [&'static str], options: &[&str]) -> Option<Self> {
        let mut mount = Self::prepare(options)?;
        mount.starter = starter;
        mount.begin();
        Some(mount)
    }

    /// The same over a source on a server that can be in trouble.
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
        // Other users must get to it.
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        for name in ["source", "mount"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let options = options.iter().map(|it| (*it).to_owned()).collect();
        Some(Self { folder, daemon: None, options, starter: &[], host: None })
    }

    /// Waits until the daemon has noticed that the source does not answer.
    pub fn wait_until_down(&self) {
        wait_until("the source is down", || {
            // Fails, or is answered from what is known.
            let _ = fs::metadata(self.at("of which there is no copy"));
            self.stats()["source"] == "down"
        });
    }

    /// The server of the source.
    pub fn server(&self) -> &FuseHost {
        self.host.as_ref().unwrap()
    }

    /// The same in modes Copy and Source; nothing where the kernel has no passthrough.
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

    /// The daemon.
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().unwrap()
    }

    /// The folder of the mount.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("mount")
    }

    /// A file of the mount.
    pub fn at(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    /// The same file at the source.
    pub fn source(&self, name: &str) -> PathBuf {
        self.folder.path().join("source").join(name)
    }

    /// Somewhere outside of both.
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

    /// A file at the source, of which there is a copy.
    pub fn copied(&self, name: &str, text: impl AsRef<[u8]>) {
        self.write_source(name, text);
        self.wait_for_copy(name);
    }

    /// Reads a file until a copy answers.
    pub fn wait_for_copy(&self, name: &str) {
        wait_until("there is a copy", || {
            let before = self.stat("hits");
            fs::read(self.at(name)).unwrap();
            self.stat("hits") > before
        });
    }

    /// A counter, by its path.
    pub fn stat(&self, path: &str) -> u64 {
        let stats = self.stats();
        let value = stats.pointer(&format!("/{path}")).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no {path} in {stats}"))
    }

    /// All counters.
    pub fn stats(&self) -> Value {
        let output = self.run(&["stats", "--json"], &[]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs another command of the program, on this mount.
    pub fn run(&self, before: &[&str], after: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.args(before).arg(self.root()).args(after).output().unwrap()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // No process ends that waits for a server.
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

/// Reads all from where a file is.
pub fn rest_of(file: &mut File) -> String {
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Makes what was written to a file durable.
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
