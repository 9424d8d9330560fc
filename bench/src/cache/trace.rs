//! The blocks accessed by a block trace. Reads, writes and accesses of unknown kind are treated
//! alike; flushes and the like are skipped.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, ensure};
use flowstone_trace::{Event, Kind};

/// Unit of access and of caching.
pub const BLOCK_BYTES: u64 = 4096;

/// Returns the accessed blocks, in order.
pub fn read(path: &Path) -> Result<Vec<u64>> {
    let trace = flowstone_trace::read(path)?;
    for warning in trace.warnings() {
        eprintln!("{}: {warning}", path.display());
    }
    let blocks: Vec<_> = trace.events.iter().flat_map(touched).collect();
    ensure!(!blocks.is_empty(), "{}: there is no read, write or access in it", path.display());
    Ok(blocks)
}

/// Returns the blocks accessed by one event; none if it is not an access.
fn touched(event: &Event) -> Range<u64> {
    if !matches!(event.kind, Kind::Read | Kind::Write | Kind::Access) {
        return 0..0;
    }
    event.blocks()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_touches_every_block_that_it_shares_a_byte_with() {
        for (kind, offset, bytes, blocks) in [
            (Kind::Read, 0, 4096, 0..1),
            (Kind::Write, 4095, 2, 0..2),
            (Kind::Access, 8192, 8192, 2..4),
            (Kind::Read, 512, 0, 0..1),
            (Kind::Flush, 0, 0, 0..0),
            (Kind::Discard, 0, 8192, 0..0),
        ] {
            let event = Event::new(kind, offset, bytes);
            assert_eq!(touched(&event), blocks, "{event:?}");
        }
    }
}
