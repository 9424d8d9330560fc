//! Parsing and formatting of sizes and counts.

/// Parses a number of bytes with an optional k, M or G (powers of 1024).
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.chars().last().map(|c| c.to_ascii_lowercase()) {
        Some('k') => (&text[..text.len() - 1], 10),
        Some('m') => (&text[..text.len() - 1], 20),
        Some('g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
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
