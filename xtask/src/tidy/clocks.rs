//! Code that works on a disk reads the clock of its file, and never the host's: on a model it must
//! be deterministic. Exceptions are listed with their reasons.

use std::collections::BTreeSet;

use super::calls::calls_in;
use super::lists::List;
use super::source::Source;

const TIMED: [&str; 6] = [
    "crates/image/src/",
    "crates/raw/src/",
    "crates/qcow2/src/",
    "crates/log/src/",
    "crates/cache/src/",
    "crates/qos/src/",
];
/// Methods that read the host's clock, and functions that do, or types whose functions do.
const METHODS: [&str; 1] = ["elapsed"];
const FUNCTIONS: [&str; 3] = ["Instant", "SystemTime", "sleep"];

/// Returns calls that are not listed, and entries of the list that are no longer needed.
pub fn check(sources: &[Source], listed: &List) -> Vec<String> {
    let is_timed = |path: &str| TIMED.iter().any(|start| path.starts_with(start));
    let timed = sources.iter().filter(|source| !source.is_test && is_timed(&source.path));
    let found: BTreeSet<(String, String)> = timed.flat_map(calls).collect();
    listed.judge(&Vec::from_iter(found))
}

fn calls(source: &Source) -> Vec<(String, String)> {
    let path = &source.path;
    let complain = |call: String| {
        let why = "asks the host for the time; ask the file's clock, or list it";
        (format!("{path} {call}"), format!("{path}: {call} {why} (xtask/tidy/host-time)"))
    };
    calls_in(source, &METHODS, &FUNCTIONS).into_iter().map(complain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, listed: &str) -> Vec<String> {
        let source = Source::parse("crates/image/src/a.rs", text).unwrap();
        check(&[source], &List::parse("host-time", listed))
    }

    #[test]
    fn who_asks_the_host_for_the_time_is_listed_or_refused() {
        let asks =
            "fn f() { std::thread::sleep(T); a.get_or_insert_with(Instant::now).elapsed(); }";
        assert_eq!(of(asks, "").len(), 3);
        let listed = "crates/image/src/a.rs elapsed\ncrates/image/src/a.rs Instant::now # why\n";
        assert!(of(asks, listed)[0].contains("sleep"));
        assert!(of("fn f() { self.clock.now(); }", listed)[0].contains("take it off"));
    }

    #[test]
    fn tests_and_other_crates_may_ask_the_host() {
        assert_eq!(of("#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }", ""), [""; 0]);
        let other = Source::parse("crates/daemon/src/a.rs", "fn f() { Instant::now(); }").unwrap();
        assert_eq!(check(&[other], &List::default()), [""; 0]);
    }
}
