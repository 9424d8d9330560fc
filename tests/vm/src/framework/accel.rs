//! KVM or emulation: the accelerator that can boot a guest on this machine.
//!
//! The existence of `/dev/kvm` is not sufficient: on some hosts (nested, para-virtual) stock
//! kernels hang or QEMU fails. So a guest without disks is started once, and the result cached in
//! `target/guest/accel` until the host's kernel changes.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::artifacts::{Artifacts, Kernel};
use super::child::Child;
use super::{qemu, workspace};

const PROBE_TIMEOUT: Duration = Duration::from_secs(8);
/// The line that `scripts/guest-init` prints to the console.
const PROBE_MARK: &str = "guest is up";

/// The accelerator of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation: available everywhere, but slow.
    Tcg,
    /// Emulation of all processors by one thread. With a thread for each, Linux 6.12 dies now and
    /// then in QEMU 7.2 (a double fault, a stray write in `net_rx_action`).
    TcgOneThread,
}

impl Accel {
    /// Returns `FLOWSTONE_ACCEL` if set, else the cached result, else that of a probe.
    pub fn choose(artifacts: &Artifacts) -> Result<Self> {
        if let Ok(wish) = std::env::var("FLOWSTONE_ACCEL") {
            return Self::named(&wish);
        }
        let record = workspace::guest_folder().join("accel");
        let host = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        if let Some(known) = kept_verdict(&record, host.trim()) {
            return Ok(known);
        }
        let verdict = if kvm_boots(artifacts) { Self::Kvm } else { Self::Tcg };
        fs::write(&record, format!("{} {host}", verdict.name()))?;
        Ok(verdict)
    }

    /// Returns the accelerator with which this kernel is reliable.
    #[must_use]
    pub fn of_kernel(self, kernel: Kernel) -> Self {
        match (self, kernel) {
            (Self::Tcg, Kernel::Newer) => Self::TcgOneThread,
            (accel, _) => accel,
        }
    }

    /// Returns `kvm` or `tcg`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg | Self::TcgOneThread => "tcg",
        }
    }

    /// Returns the value of QEMU's `-accel`.
    #[must_use]
    pub fn qemu_accel(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi,tb-size=256",
            Self::TcgOneThread => "tcg,thread=single,tb-size=256",
        }
    }

    /// Returns the value of QEMU's `-cpu`. Under emulation an old model boots faster than a
    /// feature-rich one; with `rdrand` the guest need not wait for entropy.
    #[must_use]
    pub fn qemu_cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg | Self::TcgOneThread => "Nehalem,+rdrand",
        }
    }

    fn named(name: &str) -> Result<Self> {
        match name {
            "kvm" => Ok(Self::Kvm),
            "tcg" => Ok(Self::Tcg),
            other => bail!("FLOWSTONE_ACCEL={other}: expected kvm or tcg"),
        }
    }
}

fn kept_verdict(record: &Path, host: &str) -> Option<Accel> {
    let kept = fs::read_to_string(record).ok()?;
    let (name, kept_host) = kept.trim().split_once(' ')?;
    (kept_host == host).then(|| Accel::named(name).ok())?
}

fn kvm_boots(artifacts: &Artifacts) -> bool {
    File::options().read(true).write(true).open("/dev/kvm").is_ok() && boot_probe(artifacts).is_ok()
}

fn boot_probe(artifacts: &Artifacts) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let args = qemu::probe_args(Accel::Kvm, artifacts);
    let mut guest = Child::spawn(Path::new(qemu::PROGRAM), &args, &folder.path().join("console"))?;
    guest.wait_until("sign of life", PROBE_TIMEOUT, |guest| guest.output().contains(PROBE_MARK))
}
