//! What a guest's file cache and the host tell each other: one line of JSON each.
//!
//! The guest reports at each epoch what it has. The host grants what it may have, as a lease:
//! either side may die, and a guest must not stay small for ever because its host did.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The name of the virtio port that connects them.
pub const PORT: &str = "org.flowstone.guest.0";
/// For so long a grant holds if no other one comes.
pub const LEASE: Duration = Duration::from_secs(30);
/// A longer line ends the conversation.
pub const LINE_BYTES_MAX: usize = 4096;
/// Points of a curve that are looked at.
pub const CURVE_POINTS_MAX: usize = 16;

/// From a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// What its cache has.
    Report(Report),
}

/// From the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToGuest {
    /// What its cache may have.
    Grant(Grant),
    /// Its reports are not heard. It may go on: that can change.
    Refused(Refusal),
}

/// What the cache of a guest has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// What its copies take.
    pub used_bytes: u64,
    /// What they may take now.
    pub limit_bytes: u64,
    /// What they would take at most: its option.
    pub wanted_bytes: u64,
    /// Of what is used, changes that are not at the source yet.
    pub dirty_bytes: u64,
    /// Of what is used, copies that are open: they cannot be given up.
    pub pinned_bytes: u64,
    /// Opens that a copy answered.
    pub hits: u64,
    /// Opens that none did.
    pub misses: u64,
    /// Fetched ahead.
    pub prefetched_bytes: u64,
    /// What part of the uses a cache would answer, of sizes in equal steps up to `wanted_bytes`;
    /// empty while that is not known.
    pub curve: Vec<f64>,
}

/// What the cache of a guest may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// So much.
    pub bytes: u64,
    /// For so many seconds.
    pub lease_s: u64,
    /// Why, for people.
    pub reason: String,
}

/// Why reports are not heard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// For people.
    pub reason: String,
}

/// A message as it is sent.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message has nothing that JSON has not");
    line.push(b'\n');
    line
}

/// Bytes that arrive, cut into lines.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
}

/// A line is longer than a line may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Passes on each line that ends in these bytes, without its end.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(part);
            if self.begun.len() > LINE_BYTES_MAX {
                return Err(TooLong);
            }
            if self.begun.last() == Some(&b'\n') {
                each(&self.begun[..self.begun.len() - 1]);
                self.begun.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_the_documentation_says() {
        let grant = ToGuest::Grant(Grant { bytes: 5, lease_s: 30, reason: "short".into() });
        let text = br#"{"grant":{"bytes":5,"lease_s":30,"reason":"short"}}"#;
        assert_eq!(line(&grant), [&text[..], b"\n"].concat());
        // A later version may say more, an earlier one says less.
        let told: ToHost = serde_json::from_str(r#"{"report":{"used_bytes":7,"new":1}}"#).unwrap();
        assert_eq!(told, ToHost::Report(Report { used_bytes: 7, ..Report::default() }));
    }

    #[test]
    fn lines_come_whole_however_they_are_cut() {
        let text = b"one\n\ntwo three\n";
        for cut in 0..text.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            for part in [&text[..cut], &text[cut..]] {
                lines.push(part, |line| seen.push(line.to_vec())).unwrap();
            }
            assert_eq!(seen, [&b"one"[..], b"", b"two three"], "cut at {cut}");
        }
    }

    #[test]
    fn a_line_without_an_end_takes_no_more_than_a_line_may_have() {
        let mut lines = Lines::default();
        let pushed = (0..100).map(|_| lines.push(&[b'x'; 100], |_| ()));
        assert_eq!(pushed.filter(Result::is_ok).count(), LINE_BYTES_MAX / 100);
    }
}
