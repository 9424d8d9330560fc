//! Commands that must succeed.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Runs a command that must succeed, and returns the JSON that it prints.
pub fn json(command: &mut Command) -> Result<Value> {
    let output = succeed(command)?;
    serde_json::from_slice(&output).with_context(|| format!("read the output of {command:?}"))
}

/// Runs a command that must succeed, and returns its output.
pub fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("run {}", command.get_program().display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {}", output.status, said.trim());
    Ok(output.stdout)
}

/// Returns a number of a JSON object.
pub fn number(of: &Value, key: &str) -> Result<f64> {
    of[key].as_f64().with_context(|| format!("no number {key:?} in the JSON"))
}
