//! A temporary folder, with commands and daemons run in it.

use flowstone_testkit::process::Daemon;
use flowstone_testkit::{Client, ClientOptions, DaemonCommand, HANG, skip};
use rustix::fs::statfs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

use crate::openapi;

/// The folder of a test.
pub struct Place {
    pub dir: TempDir,
}

impl Place {
    /// Makes a folder on the disk that holds the build.
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap() }
    }

    /// Returns a path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a path in the folder, as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Runs `flowstone` in the folder.
    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flowstone"));
        command.args(args).current_dir(self.dir.path()).output().unwrap()
    }

    /// Runs `flowstone`, which must succeed. Returns its output.
    pub fn succeed(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let printed = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?} ({}): {printed}{errors}", output.status);
        printed
    }

    /// Checks that an image whose daemon was killed, or whose host failed, is valid except for
    /// leaked clusters, which `check --repair` frees.
    pub fn assert_sound(&self, image: &str) {
        let output = self.run(&["check", "--data", image]);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{image}: {output:?}");
        self.succeed(&["check", "--data", "--repair", image]);
    }

    /// Runs `flowstone`, which must fail with status 1 and one line of the agreed form. Returns
    /// that line.
    pub fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let errors = String::from_utf8(output.stderr).unwrap();
        let line = errors.lines().last().unwrap_or_default().to_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {errors}");
        assert!(line.starts_with("flowstone: "), "{args:?}: {errors}");
        assert!(line.contains(": ") && line.contains("; "), "{args:?} gives no advice: {line}");
        line
    }

    /// Returns whether `--discard keep` is possible here; prints a note if not.
    pub fn keeps_space(&self) -> bool {
        const BTRFS: u64 = 0x9123_683e;
        let keeps = statfs(self.dir.path()).unwrap().f_type as u64 != BTRFS;
        if !keeps {
            skip("btrfs keeps no space");
        }
        keeps
    }

    /// Makes a raw image of this size.
    pub fn image(&self, size: &str) -> PathBuf {
        self.succeed(&["create", "--size", size, "disk.raw"]);
        self.path("disk.raw")
    }

    /// Starts `flowstone serve` on `disk.sock` with more arguments.
    pub fn serve(&self, args: &[&str]) -> Daemon {
        self.serve_command(args).spawn().unwrap()
    }

    /// Returns the command that [`serve`](Self::serve) starts.
    pub fn serve_command(&self, args: &[&str]) -> DaemonCommand {
        DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
            .args(["serve", "--socket", &self.text("disk.sock")])
            .args(["--control", &self.text("control.sock")])
            .args(args.iter().map(|arg| self.absolute(arg)))
    }

    /// Starts `flowstone serve` on another socket, without a control socket; returns an error if it
    /// fails.
    pub fn serve_on(&self, socket: &str, args: &[&str]) -> flowstone_testkit::Result<Daemon> {
        DaemonCommand::new(env!("CARGO_BIN_EXE_flowstone"))
            .args(["serve", "--socket", &self.text(socket)])
            .args(args.iter().map(|arg| self.absolute(arg)))
            .spawn()
    }

    /// Returns the absolute path of a file in the folder; anything else unchanged.
    fn absolute(&self, arg: &str) -> String {
        if self.path(arg).is_file() { self.text(arg) } else { arg.to_owned() }
    }

    /// Returns options for a driver of `disk.sock`.
    pub fn options(&self) -> ClientOptions {
        ClientOptions::new(self.path("disk.sock"))
    }

    /// Connects a driver to `disk.sock`.
    pub fn client(&self) -> Client {
        Client::connect(self.options()).unwrap()
    }

    /// Returns the daemon's statistics of one disk.
    pub fn disk_stats(&self, name: &str) -> serde_json::Value {
        let stats = self.stats();
        let disks = stats["disks"].as_array().unwrap();
        disks.iter().find(|disk| disk["name"] == name).unwrap().clone()
    }

    /// Returns the daemon's statistics.
    pub fn stats(&self) -> serde_json::Value {
        let text = self.succeed(&["stats", "--control", &self.text("control.sock"), "--json"]);
        let stats = serde_json::from_str(&text).unwrap();
        openapi::holds("Stats", &stats);
        stats
    }
}

/// Sends a request to the daemon's control socket, as programs do. Returns status and body, checked
/// against docs/openapi.json.
pub fn ask(place: &Place, method: &str, target: &str, body: &str) -> (u16, String) {
    let mut socket = UnixStream::connect(place.path("control.sock")).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let head = format!("{method} {target} HTTP/1.1\r\nhost: flowstone\r\nconnection: close\r\n");
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    openapi::check(method, target, status, body);
    (status, body.to_owned())
}

/// Sets a flag when it is dropped, also by a failing test, so that threads which wait for it end.
pub struct Over<'flag>(pub &'flag AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Ends a daemon by SIGTERM; it must exit with 0. What it said is shown if the test fails later.
pub fn stop(mut daemon: Daemon) {
    let status = daemon.terminate(HANG).unwrap();
    println!("{}", daemon.stderr());
    assert!(status.success(), "{status}");
}

/// Returns whether a qcow2 image in this folder was not closed in order.
pub fn has_redo_file(folder: &Path) -> bool {
    let mut files = std::fs::read_dir(folder).unwrap();
    files.any(|file| file.unwrap().path().extension().is_some_and(|it| it == "redo"))
}

/// Returns bytes that depend on their position.
pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes).map(|i| (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed).collect()
}
