//! A child process that never outlives its owner.
//!
//! Dropping it kills it; if this program itself is killed, the kernel does (`setpriv --pdeathsig`).
//! That signal is tied to the *thread* that spawned, so a child must not be spawned by a helper
//! thread that ends first.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child as StdChild, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// Polling interval of waits.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A running program whose standard output and error go to a log file.
#[derive(Debug)]
pub struct Child {
    name: String,
    log: PathBuf,
    inner: StdChild,
}

impl Child {
    /// Starts `program`; its output is appended to `log`.
    pub fn spawn(program: &Path, args: &[String], log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        let inner = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(args)
            // In a daemon, queues with `pipeline = 'auto'` change their form at every check.
            .env("FLOWSTONE_RESTLESS_FORMS", "1")
            // With shared pollers, a busy queue moves at every check.
            .env("FLOWSTONE_RESTLESS_QUEUES", "1")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, log: log.to_owned(), inner })
    }

    /// Returns the process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.id()
    }

    /// Returns the output of the program so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the exit status, if the program has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.inner.try_wait()?)
    }

    /// Waits until `done` returns `true`. The end of the program, or a timeout, is an error.
    pub fn wait_until(
        &mut self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !done(self) {
            if let Some(status) = self.ended()? {
                bail!("{} ended ({status}) before {what}:\n{}", self.name, self.output());
            }
            if Instant::now() > deadline {
                bail!("{}: no {what} within {timeout:?}:\n{}", self.name, self.output());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Connects to a socket of the program, as soon as it listens there. A socket that exists may
    /// still refuse: it gets its name before it listens.
    pub fn connect(&mut self, socket: &Path, timeout: Duration) -> Result<UnixStream> {
        let mut stream = None;
        self.wait_until(&format!("answer at {}", socket.display()), timeout, |_| {
            stream = UnixStream::connect(socket).ok();
            stream.is_some()
        })?;
        stream.context("a connection")
    }

    /// Waits for the program to end by itself.
    pub fn wait(&mut self, timeout: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs after {timeout:?}:\n{}", self.name, self.output());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Sends SIGTERM to the program and waits for its end.
    pub fn terminate(&mut self, timeout: Duration) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.inner), Signal::TERM)?;
        self.wait(timeout)
    }

    /// Kills the program (SIGKILL) and reaps it.
    pub fn kill(&mut self) -> Result<()> {
        self.inner.kill()?;
        let status = self.inner.wait()?;
        match status.signal() {
            Some(_) => Ok(()),
            None => bail!("{} had ended before ({status}):\n{}", self.name, self.output()),
        }
    }

    /// Returns the processor time of the program, all threads, user and system.
    pub fn cpu_time(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()))?;
        // The name in parentheses may contain spaces; utime and stime are the 12th and 13th field
        // after it.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 =
            fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
        Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only if the program has ended and was reaped, which is the goal.
        let _ = self.inner.kill();
        let _ = self.inner.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn started(program: &str, argument: &str, folder: &Path) -> Child {
        Child::spawn(Path::new(program), &[argument.into()], &folder.join("log")).unwrap()
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        drop(UnixListener::bind(&socket).unwrap());
        let mut child = started("sleep", "1000", folder.path());
        std::thread::scope(|scope| {
            let listener = scope.spawn(|| {
                std::thread::sleep(POLL_INTERVAL * 5);
                let listens = folder.path().join("listens");
                let listener = UnixListener::bind(&listens).unwrap();
                std::fs::rename(&listens, &socket).unwrap();
                listener
            });
            child.connect(&socket, Duration::from_secs(100)).unwrap();
            listener.join().unwrap();
        });
    }

    #[test]
    fn the_end_of_a_program_that_never_listens_is_an_error_with_its_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = started("ls", "/no-such-folder", folder.path());
        let error = child.connect(&folder.path().join("socket"), Duration::from_secs(100));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("ended") && error.contains("no-such-folder"), "{error}");
    }
}
