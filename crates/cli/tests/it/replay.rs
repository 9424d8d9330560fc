//! `flowstone replay`: what scripts may rely on.

use serde_json::Value;

use crate::fixture::Place;

const SMALL: [&str; 9] =
    ["replay", "--size", "64M", "--fill", "0.4", "--ssd", "op=28%", "--json", "--warmup=20000"];

#[test]
fn a_replay_says_what_was_written_at_each_level() {
    let place = Place::new();
    for format in ["raw", "log"] {
        let load = ["--generate", "zipf:0.99", "--ops", "30000", "--format", format];
        let args = [&SMALL[..], &load].concat();
        let text = place.succeed(&args);
        let report: Value = serde_json::from_str(&text).unwrap();
        let number =
            |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key} in {report}"));
        assert_eq!((number("guest_blocks"), number("requests")), (30_000.0, 30_000.0));
        let (host, device) = (number("host_blocks"), number("device_blocks"));
        assert_eq!(number("host_waf"), host / 30_000.0);
        assert_eq!(number("device_waf"), device / host);
        assert_eq!(number("total_waf"), device / 30_000.0);
        assert!(number("erases") > 0.0 && number("device_seconds") > 0.0, "{report}");
        assert_eq!((number("seed"), number("punches") >= 0.0), (1.0, true));
        assert_eq!(place.succeed(&args), text, "another run says something else");
    }
}

#[test]
fn a_trace_is_replayed_as_it_is_and_its_mistakes_are_named() {
    let place = Place::new();
    std::fs::write(place.path("trace.csv"), "0,P,0,1048576\n1,W,0,4096\n2,R,0,512\n3,F,0,0\n")
        .unwrap();
    let trace = ["replay", "--trace", "trace.csv", "--size", "64M", "--format", "raw", "--json"];
    let args = [&trace[..], &["--ssd", "op=28%"]].concat();
    let report: Value = serde_json::from_str(&place.succeed(&args)).unwrap();
    for (key, count) in [("requests", 3), ("reads", 1), ("writes", 1), ("flushes", 1)] {
        assert_eq!(report[key], count, "{key} in {report}");
    }
    std::fs::write(place.path("trace.csv"), "0,W,0,4096\n1,W,oops,4096\n").unwrap();
    let refusal = place.refused(&args);
    assert!(refusal.contains("trace.csv: line 2:"), "{refusal}");
    let refusal = place.refused(&["replay", "--trace", "none.csv", "--format", "raw"]);
    assert!(refusal.contains("none.csv"), "{refusal}");
    let full =
        ["replay", "--generate", "uniform", "--size", "1G", "--fill", "0.8", "--format", "log"];
    let refusal = place.refused(&full);
    assert!(refusal.contains("the largest --fill is 0.7"), "{refusal}");
}
