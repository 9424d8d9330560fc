//! Traces that anybody may have written: reading one ends, and what it says can be replayed.

#![no_main]

use flowstone_trace::read_from;
use libfuzzer_sys::fuzz_target;

/// The longest read or write; what is given up may be longer.
const REQUEST_BYTES_MAX: u64 = 1 << 30;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = read_from(bytes) else { return };
    assert!(!trace.events.is_empty());
    let end = trace.end();
    for event in &trace.events {
        assert!(event.offset + event.bytes <= end);
        assert!(event.bytes <= REQUEST_BYTES_MAX || event.blocks().end > event.blocks().start);
    }
});
