//! Guest scripts shared by several tests: verified load and checksums.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use flowstone_vmtest::framework::daemon::flowstone;
use flowstone_vmtest::framework::tools;

/// Random writes to the raw disk by two jobs, 16 deep each, all read back and verified.
pub fn verified_load(megabytes_per_job: u32) -> String {
    format!(
        "fio --name=load --filename=/dev/vda --numjobs=2 --offset_increment={megabytes_per_job}M \
         --size={megabytes_per_job}M --rw=randwrite --bs=4k --ioengine=libaio --iodepth=16 \
         --direct=1 --verify=crc32c --verify_fatal=1 --group_reporting --minimal"
    )
}

/// Prints the checksum of the whole disk, of which the guest has nothing in memory. Without a pipe
/// for the data: an emulated guest moves 10 MiB a second through one.
pub const DISK_CHECKSUM: &str = "blockdev --flushbufs /dev/vda; xxhsum -q /dev/vda | cut -d' ' -f1";

/// Returns a raw image with the content of `image`: itself, or a copy of a log image.
pub fn as_raw(image: &Path) -> Result<PathBuf> {
    if image.extension().is_some_and(|extension| extension == "raw") {
        return Ok(image.to_owned());
    }
    let raw = image.with_extension("raw");
    flowstone(&["convert", &image.to_string_lossy(), &raw.to_string_lossy()])?;
    Ok(raw)
}

/// Fails unless `flowstone check --data` finds no error in an image that is not in use.
pub fn check_clean(image: &Path) -> Result<()> {
    flowstone(&["check", "--data", &image.to_string_lossy()]).map(drop)
}

/// The same after a crash, which may leave leaked host space that only `--repair` frees.
pub fn check_sound(image: &Path) -> Result<()> {
    const ONLY_LEAKS: &str = "exit status: 3";
    match check_clean(image) {
        Err(error) if error.to_string().contains(ONLY_LEAKS) => Ok(()),
        outcome => outcome,
    }
}

/// Returns the checksum of a raw image on the host, in the same form.
pub fn image_checksum(image: &Path) -> Result<String> {
    let image = image.display();
    host("sh", &["-c", &format!("xxhsum -q <'{image}' | cut -d' ' -f1")])
}

/// Returns the checksum of some mebibytes of an image on the host.
pub fn image_part_checksum(image: &Path, from_mib: u32, mib: u32) -> Result<String> {
    let image = image.display();
    let read = format!("dd if='{image}' bs=1M skip={from_mib} count={mib} status=none");
    host("sh", &["-c", &format!("{read} | xxhsum -q | cut -d' ' -f1")])
}

/// Returns a guest script that writes random data to some mebibytes of the disk and prints their
/// checksum.
pub fn write_random(options: &str, from_mib: u32, mib: u32) -> String {
    format!(
        "dd if=/dev/urandom of=/tmp/random bs=1M count={mib} 2>/dev/null
         dd if=/tmp/random of=/dev/vda bs=1M seek={from_mib} {options} 2>/dev/null
         xxhsum -q </tmp/random | cut -d' ' -f1"
    )
}

/// Runs a host command that must succeed and returns its output.
pub fn host(program: &str, args: &[&str]) -> Result<String> {
    tools::host(Command::new(program).args(args))
}
