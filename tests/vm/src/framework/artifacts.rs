//! Kernels and initramfs of the guests, in `target/guest`.
//!
//! Kernels are fetched by `scripts/setup` only: a test never downloads. The initramfs is
//! built here, through `scripts/guest-initrd`, whenever its inputs changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::workspace;

/// The kernel and initramfs that QEMU boots.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// Bootable kernel image.
    pub kernel: PathBuf,
    /// Uncompressed initramfs with tools, drivers and the agent.
    pub initrd: PathBuf,
}

/// The Debian kernel that a guest boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// The cloud kernel: small, and without F2FS.
    Cloud,
    /// The generic kernel, with F2FS.
    Generic,
    /// The cloud kernel of the next release, 6.12.
    Newer,
}

impl Kernel {
    /// Returns its folder in `target/guest`.
    fn root(self) -> PathBuf {
        let name = match self {
            Self::Cloud => "kernel",
            Self::Generic => "kernel-generic",
            Self::Newer => "kernel-newer",
        };
        workspace::guest_folder().join(name)
    }
}

impl Artifacts {
    /// Finds a kernel and updates its initramfs. The error is a reason to skip.
    pub fn find(which: Kernel) -> Result<Self> {
        let kernel_root = which.root();
        let (initrd, more): (_, &[&str]) = match which {
            Kernel::Cloud => ("initrd.cpio", &[]),
            Kernel::Generic => ("initrd-generic.cpio", &["f2fs"]),
            Kernel::Newer => ("initrd-newer.cpio", &[]),
        };
        let initrd = workspace::guest_folder().join(initrd);
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

/// Returns the module of `guest/kmod` for a kernel.
pub fn hint_module(which: Kernel) -> Result<PathBuf> {
    let kernel_root = which.root();
    let module = kernel_root.with_extension("flowstone_hint.ko");
    run_script("guest-module", &[&kernel_root, &module], &[])?;
    Ok(module)
}

/// Returns a static `flowstone-guest` binary that runs in any guest.
pub fn static_guest() -> Result<PathBuf> {
    let output = Command::new(workspace::script("static-guest")).output()?;
    if !output.status.success() {
        bail!("static-guest: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn build_initrd(kernel_root: &Path, initrd: &Path, more: &[&str]) -> Result<()> {
    run_script("guest-initrd", &[kernel_root, initrd], more)
}

fn run_script(name: &str, paths: &[&Path], more: &[&str]) -> Result<()> {
    let script = workspace::script(name);
    let output = Command::new(&script)
        .args(paths)
        .args(more)
        .output()
        .with_context(|| format!("run {}", script.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
