//! Guest scripts shared by several tests: verified load and checksums.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Printed by `verified_load` when the I/O is about to begin.
pub const LOAD_BEGINS: &str = "load begins";

/// Random writes to the raw disk by two jobs, 16 deep each, all read back and checked.
pub fn verified_load(megabytes_per_job: u32) -> String {
    format!(
        "echo {LOAD_BEGINS}
         fio --name=load --filename=/dev/vda --numjobs=2 --offset_increment={megabytes_per_job}M \
             --size={megabytes_per_job}M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 \
             --direct=1 --verify=crc32c --verify_fatal=1 --group_reporting --minimal"
    )
}

/// Checksum of the whole disk as the guest reads it, past its page cache.
pub const DISK_CHECKSUM: &str =
    "dd if=/dev/vda iflag=direct bs=1M 2>/dev/null | sha256sum | cut -d' ' -f1";

/// Checksum of an image on the host.
pub fn image_checksum(image: &Path) -> Result<String> {
    let output = host("sha256sum", &[&image.to_string_lossy()])?;
    Ok(output.split(' ').next().unwrap_or_default().to_owned())
}

/// Runs a host command that must succeed and returns what it printed.
pub fn host(program: &str, args: &[&str]) -> Result<String> {
    // Debian keeps the file system tools out of a user's search path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(args).env("PATH", path).output().context("run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {args:?}: {}\n{text}{errors}", output.status);
    Ok(text)
}
