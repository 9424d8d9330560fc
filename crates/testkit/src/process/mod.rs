//! Starts the program under test, waits until it serves, and makes sure that it ends.
//!
//! A `Daemon` is killed and reaped when dropped, even if the test fails. Its output is captured by
//! threads that end with the process. Its readiness is detected, but its service is not used here.

mod command;
mod locate;
mod output;

use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub use command::{DaemonCommand, Ready, pin_current_thread};
pub use locate::flowstone_binary;
use output::Capture;
pub use tempfile::TempDir;

use crate::{Error, HANG, Result};

/// Usual timeout of `terminate`.
pub const TERMINATE_TIMEOUT: Duration = HANG;
/// Time that written output may take through a pipe on a busy machine.
const LAST_WORDS: Duration = Duration::from_secs(20);

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    stdout: Capture,
    stderr: Capture,
    status: Option<ExitStatus>,
}

impl Daemon {
    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills with SIGKILL, as a crash would, and reaps.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::KILL)?;
        self.wait(TERMINATE_TIMEOUT)
    }

    /// Sends SIGTERM and waits for the end.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.wait(timeout)
    }

    /// Sends a signal; does nothing if the process has ended.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).map_err(|e| Error::io(format!("signal process {pid:?}"), e))
    }

    /// Returns its exit status, if it has ended.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait().map_err(|e| Error::io("wait for the daemon", e))?;
        }
        Ok(self.status)
    }

    /// Waits for the end.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                let action = format!("process {} should end", self.pid());
                return Err(Error::Timeout { action, timeout_ms: timeout.as_millis() as u64 });
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns everything that it has written to stdout before this call.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// Returns everything that it has written to stderr before this call. For output that follows
    /// another event seen by a test, use [`wait_stderr`](Self::wait_stderr).
    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Waits until stdout has a line that contains `text`.
    pub fn wait_stdout(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let found = |daemon: &Self| daemon.stdout().lines().any(|line| line.contains(text));
        self.wait_until(&format!("stdout says {text:?}"), timeout, found)
    }

    /// Waits until stderr has a line that contains `text`.
    pub fn wait_stderr(&mut self, text: &str, timeout: Duration) -> Result<()> {
        let found = |daemon: &Self| daemon.stderr().lines().any(|line| line.contains(text));
        self.wait_until(&format!("stderr says {text:?}"), timeout, found)
    }

    fn wait_until(
        &mut self,
        what: &str,
        timeout: Duration,
        done: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !done(self) {
            if let Some(status) = self.try_wait()? {
                self.stdout.wait_for_end(LAST_WORDS);
                self.stderr.wait_for_end(LAST_WORDS);
                if done(self) {
                    return Ok(());
                }
                let stderr = self.stderr();
                return Err(Error::Daemon(format!("ended with {status} before {what}: {stderr}")));
            }
            if Instant::now() >= deadline {
                let timeout_ms = timeout.as_millis() as u64;
                let stderr = self.stderr();
                let action = format!("waiting until {what}; stderr so far: {stderr:?}");
                return Err(Error::Timeout { action, timeout_ms });
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Makes a directory that is removed with the value.
pub fn temp_dir() -> Result<TempDir> {
    tempfile::Builder::new()
        .prefix("flowstone-")
        .tempdir()
        .map_err(|e| Error::io("make a temporary directory", e))
}
