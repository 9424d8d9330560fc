//! Escaping of untrusted text for a terminal.

use std::fmt::{self, Display, Write};

/// Shows control characters and bidirectional overrides as escapes: a name from a monitor, a guest
/// or an image must not send control sequences to an operator's terminal.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(is_unsafe) {
            match part.chars().next_back().filter(|last| is_unsafe(*last)) {
                None => self.0.write_str(part)?,
                Some(last) => {
                    self.0.write_str(&part[..part.len() - last.len_utf8()])?;
                    write!(self.0, "{}", last.escape_default())?;
                }
            }
        }
        Ok(())
    }
}

fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A VM's name, which is an argument of its monitor's command line, was printed raw by `stats`.
    #[test]
    fn what_commands_a_terminal_is_shown_and_not_obeyed() {
        let name = "web\u{1b}]0;pwned\u{7}\r\n\u{9b}31m\u{202e}x Geschäft";
        let shown = Printable(name).to_string();
        assert_eq!(shown, "web\\u{1b}]0;pwned\\u{7}\\r\\n\\u{9b}31m\\u{202e}x Geschäft");
        assert_eq!(Printable("").to_string(), "");
    }
}
