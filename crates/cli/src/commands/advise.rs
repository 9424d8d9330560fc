//! `flowstone advise`

use flowstone_advise::{Advice, AdviseOptions, Alternative, Wear, advise};
use flowstone_block::{Error, Result, format_size};

use super::print_report;
use super::replay::{ratio, trace_at};
use crate::args::Advise;
use crate::output::out;
use crate::progress::{bar, under};

pub fn run(args: &Advise) -> Result<()> {
    let trace = trace_at(&args.trace)?;
    let Advise { ssd, fill, endurance, price, .. } = *args;
    let options = AdviseOptions { ssd, fill, endurance, price };
    let advice = under(bar("replaying"), |progress| advise(&trace, &options, progress));
    let advice = advice.map_err(|error| {
        Error::invalid("advise", format!("{error:#}"), "see flowstone advise --help")
    })?;
    print_report(&advice, args.json, print);
    Ok(())
}

fn print(advice: &Advice) {
    let mut rows = vec![("format", advice.format.clone())];
    if let (Some(reserve), Some(segment)) = (advice.reserve_percent, advice.segment_bytes) {
        let text = format!("reserve {reserve} %, segments of {}", format_size(segment));
        rows.push(("", text));
    }
    let cache = match advice.cache_bytes {
        0 => "none".into(),
        bytes => format!("{}, {:.1} % hits", format_size(bytes), advice.cache_hit_ratio * 100.0),
    };
    rows.push(("cache", cache));
    rows.push(("pollers", advice.pollers.into()));
    rows.extend(advice.wear.iter().flat_map(of_wear));
    let lists = [
        ("because", advice.because.clone()),
        ("formats", advice.alternatives.iter().map(line).collect()),
        (
            "otherwise",
            advice
                .changes
                .iter()
                .map(|it| {
                    let all: Vec<_> = it.alternatives.iter().map(line).collect();
                    format!("{} if {}: {}", it.format, it.condition, all.join("; "))
                })
                .collect(),
        ),
        ("not known", advice.unknown.clone()),
    ];
    for (name, list) in lists {
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        rows.extend(names.zip(list));
    }
    for (name, value) in rows {
        out!("{name:<10} {value}");
    }
}

fn line(it: &Alternative) -> String {
    let Alternative { format, total_waf, range, host_waf, device_waf, why_not, .. } = it;
    if let Some(why) = why_not {
        return format!("{format}: {why}");
    }
    let range =
        range.map_or_else(String::new, |[least, most]| format!(", {least:.2} to {most:.2}"));
    let (total, host, device) = (ratio(*total_waf), ratio(*host_waf), ratio(*device_waf));
    format!("{format}: total WAF {total} ({host} x {device}){range}")
}

fn of_wear(wear: &Wear) -> Vec<(&'static str, String)> {
    let mut rows = vec![(
        "a day",
        format!(
            "{:.3} TB by the guest, {:.3} TB to the drive, {:.3} TB programmed",
            wear.guest_tb_per_day, wear.host_tb_per_day, wear.flash_tb_per_day
        ),
    )];
    if let Some(years) = wear.years {
        let price = wear.price_per_year;
        let price = price.map_or_else(String::new, |price| format!(", {price:.2} a year"));
        rows.push(("endurance", format!("{years:.1} years{price}")));
    }
    rows
}
