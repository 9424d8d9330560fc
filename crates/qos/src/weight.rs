//! Weights of disks that share a resource.

use std::fmt;
use std::str::FromStr;

/// The weight of a disk relative to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Weight(u32);

impl Weight {
    /// Largest weight; the smallest is 1.
    pub const MAX: u32 = 10_000;

    /// A weight from 1 to [`Weight::MAX`].
    pub fn new(weight: u32) -> Result<Self, String> {
        if (1..=Self::MAX).contains(&weight) {
            Ok(Self(weight))
        } else {
            Err(format!("a weight of {weight}; use one from 1 to {}", Self::MAX))
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    /// A middle value, with room for smaller ones.
    fn default() -> Self {
        Self(100)
    }
}

impl FromStr for Weight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let why = |_| format!("`{text}` is not a weight; use a number from 1 to {}", Self::MAX);
        Self::new(text.parse().map_err(why)?)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_within_bounds() {
        assert_eq!("250".parse::<Weight>().map(Weight::get), Ok(250));
        for text in ["0", "10001", "-1", "x", "", "1.5"] {
            let why = text.parse::<Weight>().unwrap_err();
            assert!(why.contains("from 1 to 10000"), "{why}");
        }
    }
}
