//! The `flowstone` command: what can be typed ([`args`]) and what is done about it
//! ([`run`](commands::run)). Man pages and shell completions are made from the same definitions.

pub mod args;
pub mod commands;
mod progress;
