//! Values of the configuration that are written as strings, by the same parsers as on the command
//! line.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

fn parsed<'de, D, T>(text: &str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    text.parse().map_err(serde::de::Error::custom)
}

/// A value with a default, written as a string.
pub fn text_or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    parsed::<D, T>(&String::deserialize(deserializer)?)
}

/// A value with a default, written as a string or as a number.
pub fn text_or_number<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    let text = match Written::deserialize(deserializer)? {
        Written::Number(number) => number.to_string(),
        Written::Text(text) => text,
    };
    parsed::<D, T>(&text)
}

/// A value that may be absent, written as a string.
pub fn optional_text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    text_or_default(deserializer).map(Some)
}

/// A list of values, each written as a string.
pub fn texts<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let list = Vec::<String>::deserialize(deserializer)?;
    list.iter().map(|text| parsed::<D, T>(text)).collect()
}

/// The parser draws a picture of the file; an error is one line.
pub fn one_line(text: &str) -> String {
    let is_drawn = |line: &str| {
        let in_margin = |letter: char| letter == ' ' || letter.is_ascii_digit();
        line.trim_start_matches(in_margin).starts_with('|')
    };
    let lines = text.lines().filter(|line| !is_drawn(line) && !line.trim().is_empty());
    lines.collect::<Vec<_>>().join(", ").replace("TOML parse error at ", "")
}
