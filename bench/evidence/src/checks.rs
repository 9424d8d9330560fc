//! The model beside a simulator of another author, which shares no code with it.

use super::table::{Shown, Table, column, named};

const LOADS: [&str; 4] = ["uniform", "zipf:0.99", "hotcold:80/20", "hotcold:95/5"];

/// The drives, and how much of them the disk is.
const LINES: [(&str, &[&str]); 9] = [
    ("TRIM, half of the drive", &["--fill=0.5", "--size=2G"]),
    ("TRIM, 70 %", &["--fill=0.7", "--size=2.8G"]),
    ("TRIM, 80 %", &[]),
    ("TRIM, 90 %", &["--fill=0.9", "--size=3.6G"]),
    (
        "no TRIM, written before, half of the drive",
        &["--fill=0.5", "--size=2G", "--ssd=trim=off", "--aged"],
    ),
    ("no TRIM, written before, 80 %", &["--ssd=trim=off", "--aged"]),
    ("28 % of spare flash, TRIM, 80 %", &["--ssd=op=28%"]),
    ("28 %, no TRIM, written before, 80 %", &["--ssd=op=28%,trim=off", "--aged"]),
    ("units of 16 KiB, TRIM, 80 %", &["--ssd=unit=16K"]),
];

/// Figures of the other simulator, in the order of the cells; two are not known.
#[rustfmt::skip]
const OTHER: [&str; 36] = [
    "1.20", "1.46", "1.39", "1.32",
    "1.65", "1.93", "1.86", "2.16",
    "2.16", "2.60", "2.41", "2.63",
    "3.27", "3.69", "3.55", "3.79",
    "4.16", "4.52", "4.44", "4.75",
    "6.15", "6.47", "6.45", "6.96",
    "1.54", "1.83", "1.76", "1.95",
    "2.11", "2.54", "2.36", "2.62",
    "8.3", "9.7", "", "",
];

/// Returns the table. Each cell takes seconds.
pub fn table(base: Vec<String>) -> Table {
    Table {
        name: "checks",
        title: "Total WAF of a raw image, for that of another simulator",
        shown: Shown::Beside(&OTHER),
        columns: named(&LOADS, |load| format!("--generate={load}")),
        lines: LINES.map(|(name, options)| column(name, options)).to_vec(),
        base: [base, vec!["--format=raw".to_owned()]].concat(),
    }
}
