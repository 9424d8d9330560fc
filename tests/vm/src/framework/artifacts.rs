//! Kernels and initramfs of the guests, in `target/guest`.
//!
//! Kernels are fetched by `scripts/setup` only: a test never downloads. The initramfs is
//! built here, through `scripts/guest-initrd`, whenever its inputs changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::workspace;

/// What QEMU boots.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// Bootable kernel image.
    pub kernel: PathBuf,
    /// Uncompressed initramfs with tools, drivers and the agent.
    pub initrd: PathBuf,
}

/// Which of Debian's kernels a guest boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The one for clouds: small, and without F2FS.
    Cloud,
    /// The generic one, with F2FS.
    Generic,
}

impl Artifacts {
    /// Finds a kernel and brings its initramfs up to date. The error is a skip reason.
    pub fn find(which: Kernel) -> Result<Self> {
        let folder = workspace::guest_folder();
        let (kernel_root, initrd, more): (_, _, &[&str]) = match which {
            Kernel::Cloud => (folder.join("kernel"), folder.join("initrd.cpio"), &[]),
            Kernel::Generic => {
                (folder.join("kernel-generic"), folder.join("initrd-generic.cpio"), &["f2fs"])
            }
        };
        let kernel = kernel_image(&kernel_root)?;
        build_initrd(&kernel_root, &initrd, more)?;
        Ok(Self { kernel, initrd })
    }
}

fn kernel_image(kernel_root: &Path) -> Result<PathBuf> {
    let boot = kernel_root.join("boot");
    fs::read_dir(&boot)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("vmlinuz-"))
        .with_context(|| format!("no guest kernel in {} (run scripts/setup)", boot.display()))
}

fn build_initrd(kernel_root: &Path, initrd: &Path, more: &[&str]) -> Result<()> {
    let script = workspace::script("guest-initrd");
    let output = Command::new(&script)
        .args([kernel_root, initrd])
        .args(more)
        .output()
        .with_context(|| format!("run {}", script.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
