//! Sizes in human notation: `8G`, `1.5G`, `10GiB`, `+1G`. Binary units throughout.

const UNITS: [(char, u64); 4] = [('T', 1 << 40), ('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];
/// A size with a decimal fraction is rounded up to whole sectors, as `qemu-img` does.
const FRACTION_UNIT: u128 = 512;
/// More decimals than 1-byte resolution of 16 TiB needs; keeps the arithmetic within 128 bits.
const DECIMALS_MAX: usize = 15;

/// Parses text such as `8G`, `64k`, `1.5T`, `10GiB`, `512 MiB` or plain `4096` into bytes; the
/// error says what is accepted. A fraction that is no whole number of sectors is rounded up to one.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let factor = factor_of(unit.strip_prefix(' ').unwrap_or(unit));
    match factor {
        Some(factor) => bytes_of(number, factor),
        None if is_decimal_unit(unit) => {
            return Err(format!(
                "`{text}` may mean powers of 1000 or of 1024; write {number}{0} or {number}{0}iB",
                unit.trim_start()[..1].to_ascii_uppercase()
            ));
        }
        None => None,
    }
    .ok_or_else(|| {
        format!("`{text}` is not a size; write bytes or a number with K, M, G or T, e.g. 1.5G")
    })
}

/// A new size, or a change of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// To this many bytes.
    To(u64),
    /// By this many bytes more.
    Grow(u64),
    /// By this many bytes less.
    Shrink(u64),
}

impl SizeChange {
    /// Parses a size, or a change with a leading `+` or `-`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_at_checked(1) {
            Some(("+", size)) => parse_size(size).map(Self::Grow),
            Some(("-", size)) => parse_size(size).map(Self::Shrink),
            _ => parse_size(text).map(Self::To),
        }
    }

    /// Applies the change to `bytes`; `None` if the result is negative or overflows.
    pub fn apply(self, bytes: u64) -> Option<u64> {
        match self {
            Self::To(size) => Some(size),
            Self::Grow(by) => bytes.checked_add(by),
            Self::Shrink(by) => bytes.checked_sub(by),
        }
    }
}

/// Returns the factor of a unit: none, `B`, `K`, `KiB` and so on.
fn factor_of(unit: &str) -> Option<u64> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else { return Some(1) };
    let rest = letters.as_str();
    let of_first = UNITS.iter().find(|(letter, _)| *letter == first.to_ascii_uppercase());
    match of_first {
        Some((_, factor)) => {
            (rest.is_empty() || rest.eq_ignore_ascii_case("iB")).then_some(*factor)
        }
        None => unit.eq_ignore_ascii_case("B").then_some(1),
    }
}

/// Returns whether the unit is ambiguous, as `GB`: it may mean a power of 1000, and a disk that is
/// 7 % off is noticed late.
fn is_decimal_unit(unit: &str) -> bool {
    let unit = unit.trim_start();
    unit.len() == 2
        && unit.is_ascii()
        && factor_of(&unit[..1]).is_some()
        && unit.ends_with(['B', 'b'])
}

fn bytes_of(number: &str, factor: u64) -> Option<u64> {
    let Some((whole, fraction)) = number.split_once('.') else {
        return number.parse::<u64>().ok()?.checked_mul(factor);
    };
    // Also refuses a second point.
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > DECIMALS_MAX || factor == 1 {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let whole: u64 = whole.parse().ok()?;
    let units = u128::from(whole) * scale + fraction.parse::<u128>().ok()?;
    let scaled = units.checked_mul(factor.into())?;
    let bytes = match scaled % scale {
        0 => scaled / scale,
        _ => (scaled / scale + 1).next_multiple_of(FRACTION_UNIT),
    };
    bytes.try_into().ok()
}

/// Formats bytes in the largest unit that leaves at most one decimal, e.g. `1.5 GiB`.
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
    fn the_iec_names_of_units_are_understood_and_so_is_what_we_print() {
        assert_eq!(parse_size("10GiB"), Ok(10 << 30));
        assert_eq!(parse_size("10gib"), Ok(10 << 30));
        assert_eq!(parse_size("10 GiB"), Ok(10 << 30));
        assert_eq!(parse_size("100 B"), Ok(100));
        for bytes in [0, 100, 1 << 20, 3 << 29, 5 << 40] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
    }

    #[test]
    fn fractions_are_exact_or_rounded_up_to_a_sector() {
        assert_eq!(parse_size("1.5G"), Ok(3 << 29));
        assert_eq!(parse_size("0.5 TiB"), Ok(1 << 39));
        assert_eq!(parse_size("1.0K"), Ok(1024));
        assert_eq!(parse_size("0.1G"), Ok(107_374_592));
        assert_eq!(parse_size("15.999999999999999T"), Ok(16 << 40));
    }

    #[test]
    fn what_is_not_a_size_is_refused() {
        for text in [
            "",
            "G",
            "-1",
            "+1",
            "1.5",
            ".5G",
            "1.G",
            "1.2.3G",
            "1e3",
            "18446744073709551615K",
            "16777216T",
            "0x10",
            "é",
            "1é",
            "1  G",
            " 1G",
            "1G ",
            "1iB",
            "1GGiB",
            "1.0000000000000001G",
            "99999999999999999999.5G",
            "18446744073709551615.9T",
        ] {
            assert!(parse_size(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn units_that_may_be_decimal_are_refused_with_both_spellings() {
        let why = parse_size("8GB").unwrap_err();
        assert!(why.contains("powers of 1000") && why.contains("8GiB"), "{why}");
    }

    #[test]
    fn changes_are_absolute_or_relative() {
        let change = |text| SizeChange::parse(text).unwrap();
        assert_eq!(change("2G").apply(1 << 30), Some(2 << 30));
        assert_eq!(change("+1.5G").apply(1 << 30), Some(5 << 29));
        assert_eq!(change("-512M").apply(1 << 30), Some(1 << 29));
        assert_eq!(change("-2G").apply(1 << 30), None);
        assert_eq!(change("+1").apply(u64::MAX), None);
        for text in ["", "+", "-", "+-1G", "--1G", "é"] {
            assert!(SizeChange::parse(text).is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn sizes_print_short() {
        assert_eq!(format_size(8 << 30), "8 GiB");
        assert_eq!(format_size(3 << 29), "1.5 GiB");
        assert_eq!(format_size(100), "100 B");
    }
}
