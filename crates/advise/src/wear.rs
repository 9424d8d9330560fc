//! Wear of a drive over time.

use std::time::Duration;

use serde::Serialize;

const DAY: f64 = 86_400.0;
const DAYS_OF_YEAR: f64 = 365.25;
const TB: f64 = 1e12;

/// Wear of a drive over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// TB (10^12 bytes) written by the guest per day.
    pub guest_tb_per_day: f64,
    /// TB written to the drive per day.
    pub host_tb_per_day: f64,
    /// TB programmed by the drive per day, including its own copies.
    pub flash_tb_per_day: f64,
    /// Years until the given endurance has been programmed. A vendor's endurance counts the host's
    /// writes, at the WAF of its own test: so this is a lower bound. Absent if nothing is
    /// programmed, as that lasts for ever.
    pub years: Option<f64>,
    /// Cost of a year at the given price.
    pub price_per_year: Option<f64>,
}

impl Wear {
    /// Derives the wear from the bytes written by the guest in a time. `endurance` is in TB.
    pub fn new(
        written_bytes: u64,
        time: Duration,
        (host_waf, total_waf): (f64, f64),
        endurance: Option<f64>,
        price: Option<f64>,
    ) -> Self {
        let guest_tb_per_day = written_bytes as f64 / TB / time.as_secs_f64() * DAY;
        let flash_tb_per_day = guest_tb_per_day * total_waf;
        let is_number = |number: &f64| number.is_finite();
        let years = endurance.map(|endurance| endurance / flash_tb_per_day / DAYS_OF_YEAR);
        let years = years.filter(is_number);
        Self {
            guest_tb_per_day,
            host_tb_per_day: guest_tb_per_day * host_waf,
            flash_tb_per_day,
            years,
            price_per_year: price.zip(years).map(|(price, years)| price / years).filter(is_number),
        }
    }
}
