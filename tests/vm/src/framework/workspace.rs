//! Paths: the source tree, the guest folder and the flowstone binary.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flowstone_testkit::process::flowstone_binary;

/// Returns the top folder of the source tree.
#[must_use]
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this package lives two folders below the root")
}

/// Returns a file in `scripts/`.
#[must_use]
pub fn script(name: &str) -> PathBuf {
    root().join("scripts").join(name)
}

/// Returns the folder of kernel, initramfs and other guest artifacts, kept between runs.
#[must_use]
pub fn guest_folder() -> PathBuf {
    root().join("target/guest")
}

/// Returns the flowstone binary: `FLOWSTONE_BIN`, or the one cargo built near this program.
pub fn flowstone() -> Result<PathBuf> {
    Ok(flowstone_binary()?)
}

/// Returns `flowstone` with a simulated volatile write cache of the drive, which is lost with the
/// process.
pub fn power_cut() -> Result<PathBuf> {
    beside("flowstone-power-cut")
}

/// Returns a binary that cargo built beside this program.
pub fn beside(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("where this program is")?;
    this.ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join(name))
        .find(|binary| binary.is_file())
        .with_context(|| format!("no {name} beside this program (cargo build --workspace --bins)"))
}
