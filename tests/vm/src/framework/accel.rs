//! KVM or emulation: what actually boots a guest on this machine.
//!
//! `/dev/kvm` is no proof: on some hosts (nested, para-virtual) stock kernels hang or QEMU
//! gives up. So a guest without disks is started once, and the verdict kept in
//! `target/guest/accel` for as long as the host's kernel stays the same.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::artifacts::Artifacts;
use super::child::Child;
use super::{qemu, workspace};

const PROBE_TIMEOUT: Duration = Duration::from_secs(8);
/// What `scripts/guest-init` prints to the console.
const PROBE_MARK: &str = "guest is up";

/// How QEMU runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// On the processor.
    Kvm,
    /// Emulated: anywhere, but slow.
    Tcg,
}

impl Accel {
    /// `FLOWSTONE_ACCEL` if set, else the kept verdict, else a probe.
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

    /// `kvm` or `tcg`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg",
        }
    }

    /// Value of QEMU's `-accel`.
    #[must_use]
    pub fn qemu_accel(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Tcg => "tcg,thread=multi,tb-size=256",
        }
    }

    /// Value of QEMU's `-cpu`. Emulated, an old model boots faster than a feature-rich one; with
    /// `rdrand` the guest need not wait for entropy.
    #[must_use]
    pub fn qemu_cpu(self) -> &'static str {
        match self {
            Self::Kvm => "host",
            Self::Tcg => "Nehalem,+rdrand",
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
