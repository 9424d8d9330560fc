//! What a guest's kernel log must not say about its disk.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::guest::Guest;

/// Fails if the kernel has logged an I/O error or a broken ring.
///
/// That a request takes long by the guest's clock says nothing: an emulated one runs ahead of a
/// busy machine's (1430 s had passed in a test of a few minutes). A stuck request makes a script of
/// the guest take longer than it may.
pub fn none_logged(guest: &mut Guest) -> Result<()> {
    let complaint = "I/O error|is not a head|blk_update_request|virtio.*(fail|error)";
    let logged = guest.run(&format!("dmesg | grep -iE '{complaint}' || true"))?;
    ensure!(logged.is_empty(), "the guest's kernel complains:\n{logged}");
    Ok(())
}
