//! The output of `blkparse`: `MAJ,MIN CPU SEQ SECONDS PID ACTION RWBS SECTOR + COUNT [PROCESS]`.
//! Requests are counted when they are queued (Q), before the kernel merges them; other actions,
//! messages and the summary at the end are skipped. A flush that comes with a write (`FW`) is not
//! counted separately.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::lines::Lines;
use crate::{Event, Kind};

const SECTOR_BYTES: u64 = 512;

/// Returns whether a line begins like those of `blkparse`: `8,0    1 `.
pub fn is_line(line: &str) -> bool {
    let mut fields = line.split_ascii_whitespace();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    let device = fields.next().and_then(|device| device.split_once(','));
    device.is_some_and(|(major, minor)| is_number(major) && is_number(minor))
        && fields.next().is_some_and(is_number)
}

/// Parser of `blkparse`'s output.
#[derive(Default)]
pub struct Output {
    /// The first device named. Another one is an error: its requests would be mixed up with the
    /// first one's.
    device: Option<String>,
}

impl Lines for Output {
    fn event(&mut self, line: &str) -> Result<Option<Event>> {
        if !is_line(line) {
            return Ok(None);
        }
        let fields: Vec<_> = line.split_ascii_whitespace().collect();
        let [device, _, _, seconds, _, "Q", kinds, place @ ..] = &fields[..] else {
            return Ok(None);
        };
        let first = self.device.get_or_insert_with(|| (*device).into());
        ensure!(
            first == device,
            "it is of another device than the lines before; give blkparse one"
        );
        let at: f64 = seconds.parse().ok().with_context(|| format!("time {seconds:?}"))?;
        let at = Duration::try_from_secs_f64(at).context("that is no time")?;
        let Some(kind) = kind_of(kinds) else { return Ok(None) };
        let (kind, offset, bytes) = match place {
            [sector, "+", count, ..] => (kind, sectors(sector)?, sectors(count)?),
            _ if kinds.starts_with('F') => (Kind::Flush, 0, 0),
            _ => return Ok(None),
        };
        Ok(Some(Event { at: Some(at), ..Event::new(kind, offset, bytes) }))
    }
}

/// Returns the kind of a request by its letters: R, W or D, after an F if a flush precedes it. A
/// flush without data is `FN`, `F`, or `FWS` without a sector; anything else without data (`N`) is
/// no request.
fn kind_of(letters: &str) -> Option<Kind> {
    let without_flush = letters.trim_start_matches('F');
    match without_flush.chars().next() {
        Some('R') => Some(Kind::Read),
        Some('W') => Some(Kind::Write),
        Some('D') => Some(Kind::Discard),
        _ if letters.starts_with('F') => Some(Kind::Flush),
        _ => None,
    }
}

fn sectors(text: &str) -> Result<u64> {
    let number: u64 = text.parse().ok().with_context(|| format!("sector {text:?} is no number"))?;
    number.checked_mul(SECTOR_BYTES).with_context(|| format!("sector {text} is beyond 2^64 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_say_what_a_request_is() {
        for (letters, kind) in [
            ("R", Some(Kind::Read)),
            ("WS", Some(Kind::Write)),
            ("WFS", Some(Kind::Write)),
            ("FWFS", Some(Kind::Write)),
            ("FN", Some(Kind::Flush)),
            ("F", Some(Kind::Flush)),
            ("D", Some(Kind::Discard)),
            ("DS", Some(Kind::Discard)),
            ("N", None),
        ] {
            assert_eq!(kind_of(letters), kind, "{letters}");
        }
    }

    /// Linux makes a flush of a write without data.
    #[test]
    fn a_flush_is_one_whatever_else_its_letters_say() {
        let mut output = Output::default();
        let mut kinds = |rest: &str| {
            let event = output.event(&format!("8,0 1 1 0.5 697 Q {rest}")).unwrap();
            event.map(|event| (event.kind, event.bytes))
        };
        assert_eq!(kinds("FWS [jbd2/sda-8]"), Some((Kind::Flush, 0)));
        assert_eq!(kinds("FN [x]"), Some((Kind::Flush, 0)));
        assert_eq!(kinds("FWFS 16 + 8 [jbd2/sda-8]"), Some((Kind::Write, 4096)));
        assert_eq!(kinds("WS [x]"), None);
    }

    #[test]
    fn two_devices_are_not_one_disk() {
        let mut output = Output::default();
        let line = |device| format!("{device} 1 1 0.5 697 Q W 16 + 8 [x]");
        assert!(output.event(&line("8,0")).unwrap().is_some());
        assert!(output.event("CPU0 (8,0):").unwrap().is_none());
        assert!(output.event(&line("8,16")).is_err());
    }
}
