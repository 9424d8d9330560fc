//! Disk errors in a guest's kernel log.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::guest::Guest;

/// Fails if the kernel has logged an I/O error or a broken ring.
///
/// A request that takes long by the guest's clock is not an error: the clock of an emulated guest
/// runs ahead on a busy machine (1430 s had passed in a test of a few minutes). A stuck request
/// makes a script of the guest time out.
pub fn none_logged(guest: &mut Guest) -> Result<()> {
    let complaint = "I/O error|is not a head|blk_update_request|virtio.*(fail|error)";
    let logged = guest.run(&format!("dmesg | grep -iE '{complaint}' || true"))?;
    ensure!(logged.is_empty(), "the guest's kernel complains:\n{logged}");
    Ok(())
}
