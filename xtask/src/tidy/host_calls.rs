//! Pollers, the control socket and the balancer serve all disks, so their threads must not make
//! calls that a disk's host can block. Every such call in the code that they run is in a list, with
//! the reason why it is allowed: new ones are reviewed.

use std::collections::BTreeSet;

use super::calls::calls_in;
use super::lists::List;
use super::source::Source;

/// Code run by those threads: all of the daemon and the runner, and the path of a request down to
/// the engines.
const SHARED: [&str; 22] = [
    "crates/daemon/src/",
    "crates/control/src/",
    "crates/resources/src/",
    "crates/runner/src/",
    "crates/host/src/",
    "crates/frontend/src/vhost_user/queue",
    "crates/classify/src/layer.rs",
    "crates/cache/src/",
    "crates/qos/src/",
    "crates/layers/src/",
    "crates/image/src/runtime/",
    "crates/raw/src/channel",
    "crates/qcow2/src/channel",
    "crates/qcow2/src/map",
    "crates/qcow2/src/meta",
    "crates/log/src/channel",
    "crates/log/src/log/",
    "crates/log/src/volume/",
    "crates/fileio/src/descriptor.rs",
    "crates/fileio/src/inline.rs",
    "crates/fileio/src/pool.rs",
    "crates/fileio/src/uring.rs",
];

/// Calls that access a file system or a device, or wait for a request.
const METHODS: [&str; 21] = [
    "metadata",
    "exists",
    "try_exists",
    "is_dir",
    "is_file",
    "flush",
    "write_all",
    "read_exact_at",
    "write_all_at",
    "canonicalize",
    "allocated_bytes",
    "space",
    "log_state",
    "next_data",
    "set_size",
    "set_len",
    "extents",
    "copies_on_write",
    "sync_all",
    "sync_data",
    "recv",
];
/// Functions that do, and types whose functions do.
const FUNCTIONS: [&str; 12] = [
    "fs",
    "File",
    "OpenOptions",
    "openat",
    "BlockingDisk",
    "BlockingFile",
    "fdatasync",
    "fstatfs",
    "fadvise",
    "fallocate",
    "flock",
    "statx",
];

/// Returns calls that are not listed, and entries of the list that are no longer needed.
pub fn check(sources: &[Source], listed: &List) -> Vec<String> {
    let is_shared = |path: &str| SHARED.iter().any(|start| path.starts_with(start));
    let shared = sources.iter().filter(|source| !source.is_test && is_shared(&source.path));
    let found: BTreeSet<(String, String)> = shared.flat_map(calls).collect();
    listed.judge(&Vec::from_iter(found))
}

fn calls(source: &Source) -> Vec<(String, String)> {
    let path = &source.path;
    let complain = |call: String| {
        let why = "may wait for a disk's host; give it to a thread of that disk, or list it";
        (format!("{path} {call}"), format!("{path}: {call} {why} (xtask/tidy/host-calls)"))
    };
    calls_in(source, &METHODS, &FUNCTIONS).into_iter().map(complain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, listed: &str) -> Vec<String> {
        let source = Source::parse("crates/daemon/src/a.rs", text).unwrap();
        check(&[source], &List::parse("host-calls", listed))
    }

    #[test]
    fn a_call_that_a_host_can_hold_up_is_listed_or_refused() {
        let asks = "fn f(p: &Path) { p.metadata(); std::fs::read(p); File::open(p); }";
        let refused = of(asks, "");
        assert_eq!(refused.len(), 3, "{refused:?}");
        let listed = "crates/daemon/src/a.rs metadata\ncrates/daemon/src/a.rs fs::read # why\n";
        assert!(of(asks, listed)[0].contains("File::open"));
        assert!(of("fn f() {}", listed)[0].contains("take it off"));
    }

    #[test]
    fn tests_and_other_crates_may_ask_a_host() {
        assert_eq!(of("#[cfg(test)]\nmod tests { fn f(p: &Path) { p.metadata(); } }", ""), [""; 0]);
        assert_eq!(of("fn f() { match plan { Plan::File(op) => op } }", ""), [""; 0]);
        let open = Source::parse("crates/fileio/src/open.rs", "fn f() { File::open(p); }").unwrap();
        assert_eq!(check(&[open], &List::default()), [""; 0]);
    }
}
