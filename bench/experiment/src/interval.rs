//! Medians, and their confidence intervals by the sign test, which assumes no distribution.

/// Chance that the true median lies on one given side of the interval.
const ONE_SIDE: f64 = 0.025;

/// Returns the middle value, or the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// Formats the median of some values with its 95 % confidence interval. Five values or less are too
/// few for that: they get the interval of all of them, with its lower confidence.
pub fn interval(values: Vec<f64>) -> String {
    shown(values, "-", |value| format!("{value:.3}"))
}

/// The same of deviations, in percent.
pub fn signed(values: Vec<f64>) -> String {
    shown(values, " to ", |value| format!("{:+.2} %", 100.0 * value))
}

/// The same of counts.
pub fn spread(values: Vec<f64>) -> String {
    shown(values, "-", thousands)
}

pub(crate) fn shown(mut values: Vec<f64>, to: &str, number: impl Fn(f64) -> String) -> String {
    values.sort_by(f64::total_cmp);
    let Some(middle) = median(values.clone()) else {
        return "-".to_owned();
    };
    let (count, cut) = (values.len(), outside(values.len()));
    let (low, high) = (values[cut.unwrap_or(0)], values[count - 1 - cut.unwrap_or(0)]);
    let (middle, low, high) = (number(middle), number(low), number(high));
    match (count, cut) {
        (1, _) => middle,
        (_, Some(_)) => format!("{middle} ({low}{to}{high})"),
        _ => {
            let confidence = 100.0 - 200.0 * 0.5_f64.powi(count as i32);
            format!("{middle} ({low}{to}{high}, {confidence:.0} %)")
        }
    }
}

/// Returns the number of values outside of the interval at each end, so that the true median is
/// below it in at most 2.5 % of all runs. `None` if there are too few values for an interval.
pub(super) fn outside(count: usize) -> Option<usize> {
    let mut chance = 0.5_f64.powi(count as i32);
    let mut sum = chance;
    let mut cut = None;
    for below in 0..count {
        if sum > ONE_SIDE {
            break;
        }
        cut = Some(below);
        chance *= (count - below) as f64 / (below + 1) as f64;
        sum += chance;
    }
    cut
}

/// Formats 1234567.8 as 1,234,568.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::with_capacity(digits.len() * 4 / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}
