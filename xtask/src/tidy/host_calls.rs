//! Pollers, the control socket and the balancer serve all disks, so their threads must not make
//! calls that a disk's host can block. Every such call in the code that they run is in a list, with
//! the reason why it is allowed: new ones are reviewed.

use super::calls::Rule;

pub const RULE: Rule = Rule {
    list: "host-calls",
    // Code run by those threads: all of the daemon and the runner, and the path of a request down
    // to the engines.
    places: &[
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
    ],
    // They access a file system or a device, or wait for a request.
    methods: &[
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
        "own_state",
        "next_data",
        "set_size",
        "set_len",
        "extents",
        "copies_on_write",
        "sync_all",
        "sync_data",
        "recv",
    ],
    functions: &[
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
    ],
    why: "may wait for a disk's host; give it to a thread of that disk, or list it",
};

#[cfg(test)]
mod tests {
    use super::super::lists::List;
    use super::super::source::Source;
    use super::RULE;

    fn of(text: &str, listed: &str) -> Vec<String> {
        let source = Source::parse("crates/daemon/src/a.rs", text).unwrap();
        RULE.check(&[source], &List::parse("host-calls", listed))
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
        assert_eq!(RULE.check(&[open], &List::default()), [""; 0]);
    }
}
