//! The blocks accessed by a block trace. Reads, writes and accesses of unknown kind are treated
//! alike; flushes and the like are skipped.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use flowstone_trace::{Event, Kind, Trace};

/// Unit of access and of caching.
pub const BLOCK_BYTES: u64 = 4096;

/// The accesses of a trace.
pub struct Accesses {
    /// The accessed blocks, in order.
    pub blocks: Vec<u64>,
    /// How many of them, from the first, are not counted.
    pub unmeasured: usize,
}

/// Returns the accesses, of which those of the first part of the trace are not counted.
pub fn read(path: &Path, warmup: Duration) -> Result<Accesses> {
    let trace = flowstone_trace::read(path)?;
    for warning in trace.warnings() {
        eprintln!("{}: {warning}", path.display());
    }
    let accesses = accesses(&trace, warmup);
    let Accesses { blocks, unmeasured } = &accesses;
    ensure!(!blocks.is_empty(), "{}: there is no read, write or access in it", path.display());
    let few = "give a shorter --warmup: no access comes after it";
    ensure!(*unmeasured < blocks.len(), "{}: {few}", path.display());
    Ok(accesses)
}

fn accesses(trace: &Trace, warmup: Duration) -> Accesses {
    let first = trace.events.iter().find_map(|event| event.at).unwrap_or_default();
    let is_early = |event: &&Event| event.at.is_some_and(|at| at < first + warmup);
    let count = |event| touched(event).count();
    let unmeasured = trace.events.iter().take_while(is_early).map(count).sum();
    Accesses { blocks: trace.events.iter().flat_map(touched).collect(), unmeasured }
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

    impl Accesses {
        /// Counts all of them.
        pub fn all(blocks: Vec<u64>) -> Self {
            Self { blocks, unmeasured: 0 }
        }
    }

    #[test]
    fn the_first_seconds_of_a_trace_are_not_counted() {
        let at = |seconds, blocks: u64| Event {
            at: Some(Duration::from_secs(seconds)),
            ..Event::new(Kind::Read, 0, blocks * BLOCK_BYTES)
        };
        let trace = Trace { events: vec![at(10, 2), at(14, 3), at(15, 4)], ..Trace::default() };
        let unmeasured =
            [0, 5, 9].map(|warmup| accesses(&trace, Duration::from_secs(warmup)).unmeasured);
        assert_eq!(unmeasured, [0, 5, 9]);
    }

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
