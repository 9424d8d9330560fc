//! A progress bar for long work; nothing where there is no terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts the bytes of a disk.
pub fn bytes_bar(what: &'static str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    // Draws on standard error, and only if that is a terminal.
    ProgressBar::new(total_bytes).with_style(style).with_message(what)
}

/// A bar that counts something else, as many as turn out.
pub fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_message(what)
}
