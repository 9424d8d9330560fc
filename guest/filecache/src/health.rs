//! The health of the source, derived from observed answers and times. Does no I/O.

use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// A call that takes this long makes the source suspect, unless others were answered meanwhile.
const SLOW: Duration = Duration::from_secs(2);

/// The state of the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceState {
    /// It answers.
    #[default]
    Up,
    /// It has not answered for a while, or could not be reached.
    Suspect,
    /// It has not answered for so long that no answer is expected.
    Down,
}

impl fmt::Display for SourceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
        })
    }
}

/// Observations of the source since the last check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard {
    /// A call was answered.
    pub answered: bool,
    /// A call has failed with an error that is independent of its object.
    pub failed: bool,
    /// The start of the oldest call in flight.
    pub oldest: Option<Instant>,
}

/// The observations of the source so far.
#[derive(Debug)]
pub struct Health {
    timeout: Duration,
    answered: Instant,
    failing_since: Option<Instant>,
}

impl Health {
    /// Starts in state up. After a silence of `timeout` the source is down.
    pub fn new(timeout: Duration, now: Instant) -> Self {
        Self { timeout, answered: now, failing_since: None }
    }

    /// Processes the observations up to `now`, and returns the state.
    pub fn look(&mut self, now: Instant, heard: Heard) -> SourceState {
        if heard.answered {
            self.answered = now;
            self.failing_since = None;
        } else if heard.failed {
            self.failing_since.get_or_insert(now);
        }
        // One call that hangs while others are answered says nothing about the source.
        let waiting_since = heard.oldest.map(|began| began.max(self.answered));
        let silent_since = waiting_since.into_iter().chain(self.failing_since).min();
        let silence = silent_since.map_or(Duration::ZERO, |it| now.saturating_duration_since(it));
        if silence >= self.timeout {
            SourceState::Down
        } else if self.failing_since.is_some() || silence >= SLOW.min(self.timeout / 2) {
            SourceState::Suspect
        } else {
            SourceState::Up
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(5);

    /// Checks once a second with the observation that `heard` returns; returns the states as
    /// letters.
    fn states(seconds: u64, heard: impl Fn(Instant, u64) -> Heard) -> String {
        let start = Instant::now();
        let mut health = Health::new(TIMEOUT, start);
        let look = |second| {
            let heard = heard(start, second);
            match health.look(start + Duration::from_secs(second), heard) {
                SourceState::Up => 'u',
                SourceState::Suspect => 's',
                SourceState::Down => 'd',
            }
        };
        (1..=seconds).map(look).collect()
    }

    #[test]
    fn a_call_that_is_not_answered_brings_it_down_and_an_answer_up() {
        let heard = |start, second| Heard {
            answered: second == 8,
            oldest: (second < 8).then_some(start + Duration::from_secs(1)),
            ..Heard::default()
        };
        assert_eq!(states(9, heard), "uusssdduu");
    }

    #[test]
    fn one_call_that_hangs_while_others_are_answered_is_no_trouble() {
        let heard = |start, _| Heard { answered: true, oldest: Some(start), ..Heard::default() };
        assert_eq!(states(20, heard), "u".repeat(20));
        // The probe is answered once the silence has made the source suspect.
        let now_and_then =
            |start, second| Heard { answered: second % 3 == 0, ..heard(start, second) };
        assert!(!states(20, now_and_then).contains('d'));
    }

    #[test]
    fn a_source_that_could_not_be_asked_is_suspect_at_once_and_down_after_the_timeout() {
        let heard = |_, second| Heard { failed: second < 9, ..Heard::default() };
        assert_eq!(states(8, heard), "sssssddd");
        let heard =
            |_, second| Heard { failed: second < 9, answered: second == 9, ..Heard::default() };
        assert_eq!(states(10, heard), "sssssddduu");
        // A single file cannot be read.
        let heard = |_, _| Heard { failed: true, answered: true, ..Heard::default() };
        assert_eq!(states(10, heard), "u".repeat(10));
    }

    #[test]
    fn nothing_on_its_way_is_no_trouble() {
        assert_eq!(states(10, |_, _| Heard::default()), "u".repeat(10));
    }

    #[test]
    fn a_short_timeout_is_suspect_half_way() {
        let start = Instant::now();
        let mut health = Health::new(Duration::from_millis(400), start);
        let heard = Heard { oldest: Some(start), ..Heard::default() };
        let mut at = |millis| health.look(start + Duration::from_millis(millis), heard);
        assert_eq!(at(199), SourceState::Up);
        assert_eq!(at(200), SourceState::Suspect);
        assert_eq!(at(400), SourceState::Down);
    }
}
