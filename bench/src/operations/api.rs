//! The daemon's control socket, as a program uses it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;

/// A request that has no answer by then never has one.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// The control socket at a path.
pub struct Api(pub PathBuf);

impl Api {
    /// The answer's body.
    pub fn get(&self, target: &str) -> Result<String> {
        self.ask("GET", target, "")
    }

    /// Adds a disk and waits until its socket is there.
    pub fn add(&self, name: &str, socket: &Path, image: &Path) -> Result<()> {
        let body = json!({ "socket": socket, "image": image }).to_string();
        self.ask("PUT", &format!("/v1/disks/{name}"), &body)?;
        wait_for(socket)
    }

    /// Removes a disk that no guest has.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.ask("DELETE", &format!("/v1/disks/{name}"), "").map(drop)
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> Result<String> {
        let mut socket = UnixStream::connect(&self.0).context("connect to the control socket")?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let head =
            format!("{method} {target} HTTP/1.1\r\nhost: flowstone\r\nconnection: close\r\n");
        let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        socket.write_all(request.as_bytes())?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer")?;
        ensure!(head.starts_with("HTTP/1.1 20"), "{method} {target}: {body}");
        Ok(body.to_owned())
    }
}

/// Waits until the socket is there.
pub fn wait_for(socket: &Path) -> Result<()> {
    let began = Instant::now();
    while !socket.exists() {
        ensure!(began.elapsed() < PATIENCE, "{} does not appear", socket.display());
        thread::sleep(PAUSE);
    }
    Ok(())
}
