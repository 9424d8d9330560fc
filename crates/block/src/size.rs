//! Sizes as people write them: `8G`, `512M`, `1536K`. Binary units throughout.

const UNITS: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// Bytes from text such as `8G`, `64k`, `1T` or plain `4096`; the message says what is accepted.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let explain = || format!("`{text}` is not a size; write bytes or a number with K, M, G or T");
    let last = text.chars().last().ok_or_else(explain)?.to_ascii_uppercase();
    let unit = UNITS.iter().find(|(letter, _)| *letter == last);
    let (digits, factor) = match unit {
        Some((_, factor)) => (&text[..text.len() - 1], *factor),
        None => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(explain());
    }
    let number: u64 = digits.parse().map_err(|_| explain())?;
    number.checked_mul(factor).ok_or_else(explain)
}

/// Bytes in the largest unit that leaves at most one decimal, e.g. `1.5 GiB`.
pub fn format_size(bytes: u64) -> String {
    for (letter, factor) in UNITS {
        if bytes >= factor {
            let tenths = (u128::from(bytes) * 10 + u128::from(factor) / 2) / u128::from(factor);
            return match tenths % 10 {
                0 => format!("{} {letter}iB", tenths / 10),
                decimal => format!("{}.{decimal} {letter}iB", tenths / 10),
            };
        }
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_case_does_not_matter() {
        assert_eq!(parse_size("8G"), Ok(8 << 30));
        assert_eq!(parse_size("64k"), Ok(64 << 10));
        assert_eq!(parse_size("512"), Ok(512));
        assert_eq!(parse_size("16T"), Ok(16 << 40));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in ["", "G", "-1", "1.5G", "8GB", "18446744073709551615K", "0x10", "é"] {
            assert!(parse_size(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(format_size(8 << 30), "8 GiB");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
        assert_eq!(format_size(100), "100 B");
    }
}
