//! A minimal QMP client: commands and their answers; events are skipped.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

const ANSWER_TIMEOUT: Duration = flowstone_testkit::HANG;

/// A connection to a running QEMU.
#[derive(Debug)]
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Leaves negotiation mode.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        let mut qmp = Self { stream: BufReader::new(stream) };
        qmp.next_message()?; // the greeting
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs one command and returns its result.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let message = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{message}")?;
        loop {
            let mut answer = self.next_message().with_context(|| format!("QMP {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    fn next_message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            bail!("QEMU closed the connection");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
