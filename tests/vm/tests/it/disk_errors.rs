//! What a guest's kernel log must not say about its disk.

use anyhow::{Result, ensure};
use flowstone_vmtest::framework::guest::Guest;

/// Fails if the kernel has logged an I/O error, a broken ring or a stuck request.
pub fn none_logged(guest: &mut Guest) -> Result<()> {
    let complaint =
        "I/O error|is not a head|blk_update_request|virtio.*(fail|error)|hung|blocked for";
    let logged = guest.run(&format!("dmesg | grep -iE '{complaint}' || true"))?;
    ensure!(logged.is_empty(), "the guest's kernel complains:\n{logged}");
    Ok(())
}
