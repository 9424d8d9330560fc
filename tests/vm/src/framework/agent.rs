//! The host's end of the script channel to `scripts/guest-init`.
//!
//! Scripts run one after another, each in its own shell. The guest acknowledges a script that it
//! has received completely, so that a lost one is not taken for one that does nothing. Output
//! arrives while a script runs, so that the progress of a hanging one is visible.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::child::POLL_INTERVAL;

/// Ends a script's output; the exit code follows.
const RECORD_SEPARATOR: u8 = 0x1e;
/// Sent instead of an exit code when the guest has booted.
const READY: &str = "ready";
/// Longest time until the guest has received a script: this does not depend on a disk.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);

/// The output of a script (both streams, in order) and its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The output.
    pub output: String,
    /// Exit code of the shell.
    pub code: i32,
}

/// A connection to the guest.
#[derive(Debug)]
pub struct Agent {
    stream: UnixStream,
    /// Bytes of the current record received so far.
    received: Vec<u8>,
}

impl Agent {
    /// Talks through the port's socket.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        Ok(Self { stream, received: Vec::new() })
    }

    /// Waits until the guest has booted.
    pub fn wait_ready(&mut self, timeout: Duration) -> Result<()> {
        match self.next_record(timeout)?.1.as_str() {
            READY => Ok(()),
            other => bail!("the booting guest said {other:?}"),
        }
    }

    /// Starts a script; the guest has received it when this returns.
    pub fn start(&mut self, script: &str) -> Result<()> {
        let length = format!("{:010}", script.len());
        let message = format!("{length}{script}");
        self.stream.write_all(message.as_bytes()).context("send a script to the guest")?;
        let (before, answer) =
            self.next_record(SEND_TIMEOUT).context("the guest did not take a script")?;
        ensure!(before.is_empty(), "the guest said {before:?} before it took a script");
        let taken = answer == format!("received {length}");
        ensure!(taken, "the guest answered {answer:?} to a script of {length} bytes");
        Ok(())
    }

    /// Sends the running script the byte that it waits for on file descriptor 3.
    pub fn tell(&mut self) -> Result<()> {
        self.stream.write_all(b"!").context("tell the guest's script")
    }

    /// Returns the outcome of the running script, if it has ended.
    pub fn poll(&mut self) -> Result<Option<Outcome>> {
        self.receive()?;
        self.take_record().map(outcome).transpose()
    }

    /// Waits until the running script has ended.
    pub fn finish(&mut self, timeout: Duration) -> Result<Outcome> {
        outcome(self.next_record(timeout)?)
    }

    /// Waits until the output of the running script so far satisfies `enough`.
    pub fn wait_for_output(
        &mut self,
        timeout: Duration,
        enough: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + timeout;
        while !enough(&self.partial_output()) {
            if self.received.contains(&RECORD_SEPARATOR) {
                bail!("the script has ended; it had printed:\n{}", self.partial_output());
            }
            self.receive_until(deadline)?;
        }
        Ok(())
    }

    /// Returns the output of a script that cannot end, since the guest has been killed.
    pub fn last_words(mut self) -> String {
        // The end of the stream, and a broken connection, mean the same.
        while self.receive_until(Instant::now() + POLL_INTERVAL).is_ok() {}
        self.partial_output()
    }

    /// Returns the text before the next separator and the line after it.
    fn next_record(&mut self, timeout: Duration) -> Result<(String, String)> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(record) = self.take_record() {
                return Ok(record);
            }
            self.receive_until(deadline)?;
        }
    }

    fn take_record(&mut self) -> Option<(String, String)> {
        let end = self.received.iter().position(|&byte| byte == RECORD_SEPARATOR)?;
        let line = self.received[end + 1..].iter().position(|&byte| byte == b'\n')?;
        let record: Vec<u8> = self.received.drain(..=end + 1 + line).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some((text(&record[..end]), text(&record[end + 1..end + 1 + line])))
    }

    fn receive_until(&mut self, deadline: Instant) -> Result<()> {
        self.receive()?;
        if Instant::now() > deadline {
            bail!("the guest is late; output so far:\n{}", self.partial_output());
        }
        Ok(())
    }

    /// Receives available data, or waits for it briefly.
    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => bail!("the guest is gone; last output:\n{}", self.partial_output()),
            Ok(count) => self.received.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("read from the guest"),
        }
        Ok(())
    }

    /// Returns the output of the running script so far.
    #[must_use]
    pub fn partial_output(&self) -> String {
        String::from_utf8_lossy(&self.received).into_owned()
    }
}

fn outcome((output, code): (String, String)) -> Result<Outcome> {
    if code == READY {
        bail!("the guest rebooted by itself; the script had printed:\n{output}");
    }
    let code = code.parse().with_context(|| format!("exit code {code:?}"))?;
    Ok(Outcome { output, code })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes an agent whose guest has sent `bytes`, and will send nothing more.
    fn agent_hearing(bytes: &[u8]) -> Agent {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.write_all(bytes).unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        // It still receives.
        std::mem::forget(far);
        near.set_read_timeout(Some(POLL_INTERVAL)).unwrap();
        Agent { stream: near, received: Vec::new() }
    }

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn output_and_exit_code_are_told_apart() {
        let mut agent = agent_hearing(b"one\ntwo\x1e3\nrest\x1e0\n");
        assert_eq!(agent.finish(SOON).unwrap(), Outcome { output: "one\ntwo".into(), code: 3 });
        assert_eq!(agent.finish(SOON).unwrap(), Outcome { output: "rest".into(), code: 0 });
    }

    #[test]
    fn an_unexpected_boot_is_an_error() {
        let mut agent = agent_hearing(b"working\x1eready\n");
        let error = agent.finish(SOON).unwrap_err().to_string();
        assert!(error.contains("rebooted by itself") && error.contains("working"), "{error}");
    }

    #[test]
    fn a_guest_that_went_away_is_an_error_with_its_last_words() {
        let mut agent = agent_hearing(b"half a li");
        let error = agent.finish(SOON).unwrap_err().to_string();
        assert!(error.contains("gone") && error.contains("half a li"), "{error}");
    }

    #[test]
    fn a_script_that_did_not_arrive_whole_is_an_error() {
        assert!(agent_hearing(b"\x1ereceived 0000000004\n").start("true").is_ok());
        for answer in ["\x1ereceived 0000000000\n", "\x1e0\n", "rest\x1ereceived 0000000004\n"] {
            assert!(agent_hearing(answer.as_bytes()).start("true").is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_script_that_ends_early_is_noticed_while_waiting_for_something_else() {
        let mut agent = agent_hearing(b"sh: fio: not found\n\x1e127\n");
        let ended = agent.poll().unwrap().expect("it has ended");
        assert_eq!((ended.code, &*ended.output), (127, "sh: fio: not found\n"));
        assert_eq!(agent_hearing(b"working").poll().unwrap(), None);
    }
}
