//! What a load does to a drive over time.

use std::time::Duration;

use serde::Serialize;

const DAY: f64 = 86_400.0;
const DAYS_OF_YEAR: f64 = 365.25;
const TB: f64 = 1e12;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Wear {
    /// Written by the guest in a day, in TB (10^12 bytes).
    pub guest_tb_per_day: f64,
    /// Written to the drive in a day.
    pub host_tb_per_day: f64,
    /// Programmed by the drive in a day, its own copies among them.
    pub flash_tb_per_day: f64,
    /// Until so much as the endurance that was given has been programmed. A maker's figure counts
    /// the host's writes, at a WAF of a test of its own: so this is the least. Absent if nothing is
    /// programmed, as that lasts for ever.
    pub years: Option<f64>,
    /// What a year of that costs, of the price that was given.
    pub price_per_year: Option<f64>,
}

impl Wear {
    /// Of so many bytes of the guest's in a time. `endurance` is in TB.
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
