//! Messages between a guest's file cache and the host: one line of JSON each.
//!
//! The guest reports the state of its cache at each epoch. The host grants it a size, as a lease:
//! either side may die, and a guest must not stay small forever because its host did.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The name of the virtio port that connects them.
pub const PORT: &str = "org.flowstone.guest.0";
/// Validity of a grant.
pub const LEASE: Duration = Duration::from_secs(30);
/// Longest line; a longer one ends the connection.
pub const LINE_BYTES_MAX: usize = 4096;
/// Most points of a curve that are evaluated.
pub const CURVE_POINTS_MAX: usize = 16;

/// A message from a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToHost {
    /// The state of its cache.
    Report(Report),
}

/// A message from the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToGuest {
    /// The size that its cache may have.
    Grant(Grant),
    /// Its reports are ignored. It may go on reporting: that can change.
    Refused(Refusal),
}

/// The state of a guest's cache.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Bytes of its copies.
    pub used_bytes: u64,
    /// Bytes that they may take now.
    pub limit_bytes: u64,
    /// Bytes that they would take at most: its option.
    pub wanted_bytes: u64,
    /// Bytes of `used_bytes` that are changes not yet written to the source.
    pub dirty_bytes: u64,
    /// Bytes of `used_bytes` in open copies, which cannot be evicted.
    pub pinned_bytes: u64,
    /// Opens served from a copy.
    pub hits: u64,
    /// Opens not served from a copy.
    pub misses: u64,
    /// Prefetched bytes.
    pub prefetched_bytes: u64,
    /// Hit ratio of a cache at sizes in equal steps up to `wanted_bytes`; empty while it is not
    /// known.
    pub curve: Vec<f64>,
}

/// The size granted to a guest's cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Bytes of the cache.
    pub bytes: u64,
    /// Duration of the lease in seconds.
    pub lease_s: u64,
    /// Reason, for an operator.
    pub reason: String,
}

/// Reason why reports are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Refusal {
    /// Reason, for an operator.
    pub reason: String,
}

/// Encodes a message for sending.
pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("a message has nothing that JSON has not");
    line.push(b'\n');
    line
}

/// Splits received bytes into lines.
#[derive(Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
}

/// A line exceeds [`LINE_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

impl Lines {
    /// Adds received bytes, and passes each completed line to `each`, without its end.
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
        // A later version may have more fields, an earlier one fewer.
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
