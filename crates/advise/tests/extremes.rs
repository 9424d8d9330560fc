//! Advice on traces whose answer is known.

use std::time::Duration;

use flowstone_advise::{Advice, AdviseOptions, advise};
use flowstone_trace::{Event, Kind, Trace};

const MIB: u64 = 1 << 20;

fn options(ssd: &str) -> AdviseOptions {
    AdviseOptions { ssd: ssd.parse().expect("a drive"), fill: 0.5, endurance: None, price: None }
}

fn of(events: Vec<Event>, options: &AdviseOptions) -> Advice {
    let trace = Trace { events, size: Some(64 * MIB), ..Trace::default() };
    advise(&trace, options, &mut |_, _| ()).expect("advice")
}

/// Writes of one block each to a full disk, most of them to a twentieth of it.
fn hot_writes(count: u64) -> Vec<Event> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut events = vec![Event::new(Kind::Present, 0, 64 * MIB)];
    let mut block = || {
        let is_hot = random.u8(..20) > 0;
        if is_hot { random.u64(..819) * 20 } else { random.u64(..16_384) }
    };
    events.extend((0..count).map(|_| Event::new(Kind::Write, block() * 4096, 4096)));
    events
}

fn knows(advice: &Advice, what: &str) -> bool {
    advice.unknown.iter().any(|it| it.starts_with(what))
}

#[test]
fn small_hot_writes_to_large_units_are_for_a_log() {
    let advice = of(hot_writes(120_000), &options("op=28%,unit=16K,block=2M"));
    assert_eq!(advice.format, "log", "{advice:#?}");
    assert!(advice.reserve_percent.is_some() && advice.segment_bytes.is_some());
    assert_eq!(advice.alternatives[0].format, "log", "the best comes first");
    let other_unit = &advice.changes[1];
    assert_eq!(other_unit.condition, "the drive maps units of 4 KiB");
    assert!(advice.because[0].starts_with("log programs at least 5 % less"), "{advice:#?}");
}

#[test]
fn sequential_writes_are_for_raw() {
    let mut events = vec![Event::new(Kind::Present, 0, 64 * MIB)];
    events.extend((0..512).map(|at| Event::new(Kind::Write, at % 128 * (MIB / 2), MIB / 2)));
    let advice = of(events, &options("op=28%,block=512K"));
    assert_eq!((advice.format.as_str(), advice.reserve_percent), ("raw", None), "{advice:#?}");
    assert_eq!(advice.cache_bytes, 0);
    assert!(advice.because.iter().any(|it| it.starts_with("nothing is read")));
}

#[test]
fn a_trace_that_writes_nothing_says_nothing_of_wear_but_of_a_cache() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut block = || {
        let blocks = if random.bool() { 1000 } else { 16_000 };
        random.u64(..blocks)
    };
    let blocks = (0..40_000).map(|_| block());
    let events = blocks.map(|block| Event::new(Kind::Read, block * 4096, 4096)).collect();
    let advice = of(events, &options("op=28%"));
    assert_eq!(advice.format, "raw");
    assert!(advice.alternatives.iter().all(|it| it.total_waf.is_none()), "{advice:#?}");
    assert!(knows(&advice, "what writes cost") && knows(&advice, "TB a day"), "{advice:#?}");
    assert!((4 * MIB..64 * MIB).contains(&advice.cache_bytes), "{}", advice.cache_bytes);
    assert!((0.4..0.9).contains(&advice.cache_hit_ratio), "{}", advice.cache_hit_ratio);
}

/// No step smaller than the loop gains anything.
#[test]
fn a_loop_is_for_a_cache_that_it_fits_in() {
    let events = (0..8192).map(|at| Event::new(Kind::Read, at % 512 * 4096, 4096));
    let others = (0..512).map(|at| Event::new(Kind::Read, (at + 1024) * 4096, 4096));
    let advice = of(events.chain(others).collect(), &options("op=28%"));
    assert!((2 * MIB..3 * MIB).contains(&advice.cache_bytes), "{advice:#?}");
    assert!(advice.cache_hit_ratio > 0.8, "{advice:#?}");
}

/// Nothing is read twice.
#[test]
fn a_scan_is_for_no_cache() {
    let events = (0..64).map(|at| Event::new(Kind::Read, at * MIB, MIB)).collect();
    assert_eq!(of(events, &options("op=28%")).cache_bytes, 0);
}

#[test]
fn a_trace_that_overwrites_little_gets_a_range() {
    let tight = AdviseOptions { fill: 0.9, ..options("op=7%,block=256K") };
    let advice = of(hot_writes(3000), &tight);
    assert!(knows(&advice, "the WAF after a longer time"), "{advice:#?}");
    let raw = advice.alternatives.iter().find(|it| it.format == "raw").unwrap();
    let [least, most] = raw.range.expect("a range");
    assert!(least < most && raw.total_waf == Some(most), "{raw:?}");
    let log = advice.alternatives.iter().find(|it| it.format == "log").unwrap();
    let why = log.why_not.as_deref().unwrap_or_default();
    assert!(why.starts_with("a log image of 64 MiB takes up to"), "{log:?}");
    assert!(advice.because.iter().any(|it| it == why), "{advice:#?}");
}

/// 1 GiB in an hour, programmed once each: 24 GiB a day.
#[test]
fn wear_is_what_a_day_writes() {
    let at = |second| Some(Duration::from_secs(second));
    let mut events: Vec<_> = (0..3601)
        .map(|second| Event { at: at(second), ..Event::new(Kind::Write, second % 64 * MIB, 4096) })
        .collect();
    events.push(Event { at: at(0), ..Event::new(Kind::Present, 0, 60 * MIB) });
    let paid = AdviseOptions { endurance: Some(1.0), price: Some(100.0), ..options("op=28%") };
    let advice = of(events, &paid);
    let wear = advice.wear.as_ref().expect("the trace has times");
    let expected = 3601.0 * 4096.0 * 24.0 / 1e12;
    assert!((wear.guest_tb_per_day / expected - 1.0).abs() < 1e-9, "{wear:?}");
    let years = 1.0 / wear.flash_tb_per_day / 365.25;
    assert!((wear.years.unwrap() / years - 1.0).abs() < 1e-9, "{wear:?}");
    assert!((wear.price_per_year.unwrap() * years / 100.0 - 1.0).abs() < 1e-9, "{wear:?}");
    assert!(knows(&advice, "other hours of the day") && !knows(&advice, "years"), "{advice:#?}");
    assert!(!knows(&advice, "money"), "{advice:#?}");
    assert_eq!(advice.pollers, "auto");
}

#[test]
fn a_price_without_an_endurance_says_what_is_missing() {
    let at = |seconds| Some(Duration::from_secs(seconds));
    let events = [0, 60].map(|time| Event { at: at(time), ..Event::new(Kind::Write, 0, 4096) });
    let priced = AdviseOptions { price: Some(100.0), ..options("op=28%") };
    let advice = of(events.to_vec(), &priced);
    let wear = advice.wear.as_ref().expect("the trace has times");
    assert_eq!((wear.years, wear.price_per_year), (None, None));
    assert!(knows(&advice, "years: no endurance") && knows(&advice, "money: "), "{advice:#?}");
    assert!(!knows(&of(events.to_vec(), &options("op=28%")), "money"), "no price was given");
}

#[test]
fn what_cannot_be_advised_on_is_an_error() {
    let nothing = Trace::default();
    let said = advise(&nothing, &options("op=28%"), &mut |_, _| ()).unwrap_err();
    assert!(said.to_string().starts_with("give the --size"), "{said}");
    let full = AdviseOptions { fill: 2.0, ..options("op=28%") };
    let trace = Trace { events: hot_writes(1), size: Some(64 * MIB), ..Trace::default() };
    let said = advise(&trace, &full, &mut |_, _| ()).unwrap_err();
    assert!(said.to_string().starts_with("--fill is a share"), "{said}");
}

/// An infinite lifetime has no years, and an infinite cost no price.
#[test]
fn figures_are_numbers_or_absent() {
    let at = |seconds| Some(Duration::from_secs(seconds));
    let wear = |kind, endurance| {
        let events = [0, 60].map(|time| Event { at: at(time), ..Event::new(kind, 0, 4096) });
        let options =
            AdviseOptions { endurance: Some(endurance), price: Some(1e300), ..options("op=28%") };
        of(events.to_vec(), &options).wear.expect("it has times")
    };
    let idle = wear(Kind::Discard, 600.0);
    assert_eq!((idle.flash_tb_per_day, idle.years, idle.price_per_year), (0.0, None, None));
    let busy = wear(Kind::Write, 1e-300);
    assert!(busy.years.is_some_and(|years| years > 0.0), "{busy:?}");
    assert_eq!(busy.price_per_year, None);
}

/// Regression: builds with overflow checks panicked.
#[test]
fn a_trace_that_held_more_than_any_disk_is_refused() {
    let events = [1 << 63, 1 << 63].map(|bytes| Event::new(Kind::Present, 0, bytes));
    let trace = Trace { events: events.to_vec(), ..Trace::default() };
    let said = advise(&trace, &options("op=28%"), &mut |_, _| ()).unwrap_err().to_string();
    assert!(said.contains("is too large"), "{said}");
}
