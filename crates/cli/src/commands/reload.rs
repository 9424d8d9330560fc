//! `flowstone reload`

use flowstone_block::{Printable, Result};
use flowstone_control::Command;
use serde_json::Value;

use super::print_answer;
use crate::args::Query;
use crate::output::out;

pub fn run(args: &Query) -> Result<()> {
    print_answer(args, &Command::Reload, print)
}

fn print(done: &Value) {
    for (what, lines) in done.as_object().into_iter().flatten() {
        for line in lines.as_array().into_iter().flatten() {
            out!("{}: {}", what.replace('_', " "), Printable(line.as_str().unwrap_or("-")));
        }
    }
}
