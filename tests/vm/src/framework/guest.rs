//! A running Linux guest: boot, run scripts, reboot, power off; killed when dropped.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use flowstone_testkit::HANG;
use serde_json::{Value, json};

use super::accel::Accel;
use super::agent::{Agent, Outcome};
use super::artifacts::Artifacts;
use super::child::Child;
use super::daemon::Daemon;
use super::diagnosis;
use super::qemu::{self, Machine};
use super::qmp::Qmp;

/// Longest wait for one action of a guest. Far above what an idle host needs: an emulated guest on
/// a busy machine is slow, and only a hang should fail.
pub const GUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest boot: some seconds here, almost a minute on a busy machine.
const BOOT_TIMEOUT: Duration = GUEST_TIMEOUT;
/// Longest time until a load has an effect.
const LOAD_TIMEOUT: Duration = HANG;
const QEMU_START_TIMEOUT: Duration = HANG;
const QEMU_END_TIMEOUT: Duration = HANG;

/// Script that defines `until_told COMMAND`, which repeats a command until [`Guest::tell`], at
/// least once.
pub const UNTIL_TOLD: &str = "\
    until_told() {
        : >/tmp/told
        dd bs=1 count=1 <&3 >/tmp/told 2>/dev/null &
        while :; do
            \"$@\"
            if [ -s /tmp/told ]; then break; fi
        done
    }";

/// A guest and its connections.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    agent: Agent,
    qmp: Qmp,
    console: PathBuf,
}

impl Guest {
    /// Starts QEMU with its files in `folder`; [`wait_ready`](Self::wait_ready) must follow.
    pub fn start_boot(
        machine: &Machine,
        accel: Accel,
        artifacts: &Artifacts,
        folder: &Path,
    ) -> Result<Self> {
        let args = machine.args(accel, artifacts, folder);
        let log = folder.join("qemu.log");
        let mut qemu = Child::spawn(Path::new(qemu::PROGRAM), &args, &log)?;
        let mut connect = |name| qemu.connect(&folder.join(name), QEMU_START_TIMEOUT);
        let agent = Agent::new(connect(qemu::AGENT_SOCKET)?)?;
        let qmp = Qmp::new(connect(qemu::QMP_SOCKET)?).with_context(|| qemu.output())?;
        Ok(Self { qemu, agent, qmp, console: folder.join(qemu::CONSOLE) })
    }

    /// Returns the ID of QEMU's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.qemu.id()
    }

    /// Runs a script of which every command must succeed. Returns its output.
    pub fn run(&mut self, script: &str) -> Result<String> {
        self.start(script)?;
        self.finish()
    }

    /// Runs a script that may fail.
    pub fn try_run(&mut self, script: &str) -> Result<Outcome> {
        self.start(script)?;
        self.explain(|guest| guest.agent.finish(GUEST_TIMEOUT))
    }

    /// Starts a script and returns at once; `finish` must follow before the next script.
    pub fn start(&mut self, script: &str) -> Result<()> {
        self.agent.start(&format!("set -eu -o pipefail\n{script}\n"))
    }

    /// Waits for the started script, which must succeed. Returns its output.
    pub fn finish(&mut self) -> Result<String> {
        match self.explain(|guest| guest.agent.finish(GUEST_TIMEOUT))? {
            Outcome { output, code: 0 } => Ok(output),
            Outcome { output, code } => bail!("a guest script failed ({code}):\n{output}"),
        }
    }

    /// Reboots through the firmware and waits until the guest is back.
    pub fn reboot(&mut self) -> Result<()> {
        self.agent.start("sync; reboot -f")?;
        self.wait_ready()
    }

    /// Powers the guest off from inside and waits for QEMU's end.
    pub fn power_off(mut self) -> Result<()> {
        self.agent.start("sync; poweroff -f")?;
        self.expect_end()
    }

    /// Makes QEMU quit under the running guest.
    pub fn quit(mut self) -> Result<()> {
        self.qmp.execute("quit", &json!({}))?;
        self.expect_end()
    }

    /// Kills QEMU (SIGKILL).
    pub fn kill(mut self) -> Result<()> {
        self.qemu.kill()
    }

    /// Waits until the output of the started script so far satisfies `enough`.
    pub fn wait_for_output(&mut self, enough: impl Fn(&str) -> bool) -> Result<()> {
        self.explain(|guest| guest.agent.wait_for_output(GUEST_TIMEOUT, enough))
    }

    /// Waits until a disk has completed `count` requests since its daemon started, caused by the
    /// running script: the middle of a load, on slow and fast machines. The end of the script is an
    /// error.
    pub fn wait_for_requests(&mut self, daemon: &Daemon, count: u64) -> Result<()> {
        let enough = || Ok(daemon.stats()?.all_requests() >= count);
        Self::wait_for_load(std::slice::from_mut(self), enough)
            .with_context(|| format!("wait for {count} requests: {:?}", daemon.stats()))
    }

    /// Returns the outcome of the started script, if it has ended; `finish` must not follow then.
    pub fn ended(&mut self) -> Result<Option<Outcome>> {
        self.explain(|guest| guest.agent.poll())
    }

    /// Sends the started script the byte that it waits for on file descriptor 3 ([`UNTIL_TOLD`]).
    pub fn tell(&mut self) -> Result<()> {
        self.agent.tell()
    }

    /// Waits until the scripts running in guests have caused what `enough` checks for. The end of a
    /// script is an error.
    pub fn wait_for_load(
        guests: &mut [Self],
        mut enough: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + LOAD_TIMEOUT;
        while !enough()? {
            for guest in guests.iter_mut() {
                guest.explain(|guest| match guest.agent.poll()? {
                    Some(Outcome { output, code }) => {
                        bail!("the script ended ({code}) before its load was felt:\n{output}")
                    }
                    None if Instant::now() > deadline => {
                        let said = guest.agent.partial_output();
                        bail!("no load within {LOAD_TIMEOUT:?}; the script printed:\n{said}")
                    }
                    None => Ok(()),
                })?;
            }
        }
        Ok(())
    }

    /// Kills QEMU in the middle of a script and returns the script's output.
    pub fn kill_in_script(mut self) -> Result<String> {
        self.qemu.kill()?;
        Ok(self.agent.last_words())
    }

    /// Runs a QMP command.
    pub fn qmp(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        self.qmp.execute(command, arguments)
    }

    /// Waits until the guest has booted and accepts scripts.
    pub fn wait_ready(&mut self) -> Result<()> {
        self.explain(|guest| guest.agent.wait_ready(BOOT_TIMEOUT)).context("boot the guest")
    }

    fn expect_end(&mut self) -> Result<()> {
        let status: ExitStatus = self.explain(|guest| guest.qemu.wait(QEMU_END_TIMEOUT))?;
        if !status.success() {
            bail!("QEMU ended with {status}:\n{}", self.qemu.output());
        }
        Ok(())
    }

    /// Adds the output of the console and of QEMU, and the state of the guest, to an error.
    fn explain<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        act(self).map_err(|error| {
            let console = std::fs::read(&self.console).unwrap_or_default();
            let console = String::from_utf8_lossy(&console).into_owned();
            let printed = format!("guest console:\n{console}\nQEMU:\n{}", self.qemu.output());
            error.context(format!("{printed}\n{}", diagnosis::of(&mut self.qmp)))
        })
    }
}
