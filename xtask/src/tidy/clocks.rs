//! Code that works on a disk reads the clock of its file, and never the host's: on a model it must
//! be deterministic. Exceptions are listed with their reasons.

use super::calls::Rule;

pub const RULE: Rule = Rule {
    list: "host-time",
    places: &[
        "crates/image/src/",
        "crates/raw/src/",
        "crates/qcow2/src/",
        "crates/log/src/",
        "crates/cache/src/",
        "crates/qos/src/",
    ],
    methods: &["elapsed"],
    functions: &["Instant", "SystemTime", "sleep"],
    why: "asks the host for the time; ask the file's clock, or list it",
};

#[cfg(test)]
mod tests {
    use super::super::lists::List;
    use super::super::source::Source;
    use super::RULE;

    fn of(text: &str, listed: &str) -> Vec<String> {
        let source = Source::parse("crates/image/src/a.rs", text).unwrap();
        RULE.check(&[source], &List::parse("host-time", listed))
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
        assert_eq!(RULE.check(&[other], &List::default()), [""; 0]);
    }
}
