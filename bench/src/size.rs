//! Sizes on the command line.

/// A number of bytes with an optional k, M or G (powers of 1024).
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
