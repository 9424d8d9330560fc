//! Refusals of operations on an image that its formats share.

use flowstone_block::{Error, Result};

/// Refuses the operation `name` on an image that is open for reading only.
pub fn refuse_readonly(name: &str, readonly: bool) -> Result<()> {
    match readonly {
        true => Err(Error::invalid(name, "it is open for reading only", "open it for writing")),
        false => Ok(()),
    }
}

/// The refusal of a resize that would cut off data.
pub fn data_beyond_end(name: &str) -> Error {
    let advice = "shrink the file system inside first and discard what it leaves (fstrim)";
    Error::invalid(name, "there is data beyond the new end", advice)
}
