//! Progress bars for long operations; none without a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// Does `work`, which moves the bar.
pub fn under<T>(bar: ProgressBar, work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T) -> T {
    let done = work(&mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    done
}

/// Makes a bar that counts the bytes of a disk.
pub fn bytes_bar(what: &'static str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    // Draws on standard error, and only if that is a terminal.
    ProgressBar::new(total_bytes).with_style(style).with_message(what)
}

/// Makes a bar that counts other units, whose total is set later.
pub fn bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style).with_message(what)
}
